"""Time of a step by kernel, part and line."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simgpu.clock import evidence
from simgpu.clock.events import Event, Kernel, Step
from simgpu.clock.host_time import seconds_by_class
from simgpu.clock.journal import Record
from simgpu.clock.lines import Part, Row, rows
from simgpu.clock.player import play
from simgpu.device.timelines import Timeline
from simgpu.forecasts.parts import seconds_by_part
from simgpu.forecasts.whatif import Basis, Option, what_if
from simgpu.ground import tables
from simgpu.ground.units import seconds_text
from simgpu.machine.hosts import Host
from simgpu.machine.machines import Machine
from simgpu.machine.operator_table import kind_of
from simgpu.machine.rates import NOT_MODELLED

BOUNDS = ("compute", "power", "bandwidth", "latency")


@dataclass(frozen=True)
class Share:
    """Share of a step that one kernel, or one kind of kernels, takes.

    `by_bound` are its seconds by what bounds them, compute, power (the card's watts hold arithmetic back), bandwidth or
    latency, or "not modelled" (only their reading and writing is counted); `bound` is the one with most of them.
    """

    name: str
    calls: int
    seconds: float
    flops: int
    nbytes: int
    bound: str
    by_bound: dict[str, float] = field(hash=False)

    @classmethod
    def of(cls, name: str, records: list[Record]) -> "Share":
        times_ns = Counter()
        for record in records:
            times_ns[record.bound] += record.duration_ns
        flops, nbytes = (sum(getattr(record, size) for record in records) for size in ("flops", "nbytes"))
        by_bound = {bound: times_ns[bound] / 1e9 for bound in dict.fromkeys((*BOUNDS, *times_ns))}
        most = max(times_ns, key=times_ns.__getitem__)
        return cls(name, len(records), times_ns.total() / 1e9, flops, nbytes, most, by_bound)


@dataclass(frozen=True, repr=False)
class TimeForecast(tables.Table):
    """Time of one step on a GPU, in seconds of the simulated clock.

    - `total_s`: from the first launch until the GPU is done; `busy_s`: how long the GPU works in it; `host_s`: how
      long the host launches, `host_by_class`: for what; `message_s`: how long messages between ranks take;
    - `flops`: operations of matrix products, convolutions and attention; `formats`: the number formats of these;
    - `by_kernel`, `by_kind`: a `Share` for each operator, for each kind of them; `by_bound`: seconds by what bounds;
    - `phases`, `lines`: seconds by part of the step, and what each line of the program asks for;
    - `records`: one `Record` for each launch, kernel and message, times in ns, each with its phase and line; of a run
      also for copies, waits and the host's own work;
    - `machine`: the GPU, its host and its link; `ranks`: how many of them do the same at the same time;
    - `what_if(…)`: the same step with another GPU, several, or another setting.
    """

    machine: Machine
    total_s: float
    host_s: float
    flops: int
    formats: tuple[str, ...]
    records: tuple[Record, ...] = field(repr=False)
    ranks: int
    basis: Basis = field(repr=False, compare=False)

    @property
    def spec(self) -> str:
        """The name of the GPU."""
        return self.machine.gpu.name

    @classmethod
    def of(cls, basis: Basis) -> "TimeForecast":
        """Return the time of a program's last step, on the GPU of `basis` that computes most."""
        timeline = Timeline.of(play(basis.events, basis.machine, basis.gpus), basis.last - 1, basis.last)
        row = max(timeline.rows, key=timeline.busy_ms)
        records = tuple(record for record in timeline.records if record.row in ("host", row))
        host_s = sum(record.duration_ns for record in records if record.kind == "launch") / 1e9
        flops = _matrix_flops(_step(basis.events, basis.last))
        seconds = timeline.total_ns / 1e9, host_s
        return cls(basis.machine, *seconds, flops.total(), tuple(flops), records, basis.used, basis)

    @cached_property
    def timeline(self) -> Timeline:
        """The records as a timeline, which knows gaps and writes a trace."""
        busy_rows = tuple(sorted({record.row for record in self.kernels})) or ("sim:0",)
        return Timeline(self.machine, busy_rows, list(self.records), round(self.total_s * 1e9))

    @cached_property
    def phases(self) -> dict[str, float]:
        """Seconds by part of the step, which sum to `total_s`: forward, backward, optimizer; of a run also data, copy.

        A time in which the GPU waits for the host belongs to the kernel after it. Empty without a backward pass.
        """
        row = self.timeline.rows[0]
        return seconds_by_part(self.timeline, row, self.timeline.gaps(row))

    @cached_property
    def lines(self) -> list[Row]:
        """What the kernels take that each line of the program asks for, the longest first; the cause is their phase."""
        return rows(Part(record.line, record.duration_ns / 1e9, record.nbytes, record.phase) for record in self.kernels)

    def what_if(
        self, *, gpu: str | None = None, gpus: int | None = None, batch: float | str = 1.0, amp: bool = False,
        fused: bool = False, foreach: bool = False, pinned: bool = False, compiled: bool | str = False,
        host: str | Host | None = None, price: float | None = None, steps: int | None = None,
    ) -> Option:  # fmt: skip
        """Return the time of the same step with another GPU, several, or another setting; all combine.

        The settings, what they take for granted and what they raise are those of `Report.what_if`. `on(…)` says more of
        another GPU; here its name can be combined with the settings.
        """
        return what_if(
            self.basis, gpu=gpu, gpus=gpus, batch=batch, amp=amp, fused=fused, foreach=foreach, pinned=pinned,
            compiled=compiled, host=host, price=price, steps=steps,
        )  # fmt: skip

    @cached_property
    def host_by_class(self) -> dict[str, float]:
        """Seconds that the host takes for the step by class of `hosts.CLASSES`; waits are not in it."""
        return seconds_by_class(_step(self.basis.events, self.basis.last), self.machine.host)

    @property
    def evidence(self) -> evidence.Evidence:
        """How far the clock is from published runs of this regime; as text the label of all times in here."""
        return evidence.of(self.records, self.machine, self.ranks)

    @cached_property
    def kernels(self) -> tuple[Record, ...]:
        """The records of kernels."""
        return tuple(record for record in self.records if record.kind == "kernel")

    @property
    def busy_s(self) -> float:
        """Busy time of the GPU, in seconds."""
        return sum(record.duration_ns for record in self.kernels) / 1e9

    @property
    def utilisation(self) -> float:
        """The share of the time, 0 to 1, in which the GPU works; below 1 it waits for the host."""
        return self.busy_s / self.total_s if self.total_s else 0.0

    @property
    def tflops(self) -> float:
        """Matrix operations a second, in 10^12."""
        return self.flops / self.total_s / 1e12 if self.total_s else 0.0

    @property
    def by_kernel(self) -> tuple[Share, ...]:
        """Each operator's share, the longest first."""
        return self._shares(lambda record: record.name)

    @property
    def by_kind(self) -> tuple[Share, ...]:
        """The shares of matrix products, attention, normalisation and so on, the longest first."""
        return self._shares(lambda record: kind_of(record.name))

    @property
    def by_bound(self) -> dict[str, float]:
        """Seconds of kernels by what bounds them: compute, power, bandwidth, or latency, the least time of a kernel.

        Those of operators that are "not modelled" are the least that these can take.
        """
        return Share.of("all", list(self.kernels)).by_bound if self.kernels else dict.fromkeys(BOUNDS, 0.0)

    def _shares(self, key: Callable[[Record], str]) -> tuple[Share, ...]:
        groups: dict[str, list[Record]] = defaultdict(list)
        for record in self.kernels:
            groups[key(record)].append(record)
        shares = [Share.of(name, records) for name, records in groups.items()]
        return tuple(sorted(shares, key=lambda share: -share.seconds))

    @property
    def message_s(self) -> float:
        """How long messages between ranks take, in seconds, whether something is computed meanwhile or not."""
        return sum(record.duration_ns for record in self.records if record.kind == "message") / 1e9

    @property
    def where(self) -> str:
        """One GPU, or each of so many, by name."""
        return f"one {self.spec}" if self.ranks == 1 else f"each of {self.ranks:,} {self.spec}"

    head = ("kind", "operators", "time", "share", "bound by")

    def cells(self) -> list[list[str]]:
        return [
            [share.name, f"{share.calls:,}", seconds_text(share.seconds), f"{share.seconds / self.total_s:.0%}",
             share.bound]
            for share in self.by_kind
        ]  # fmt: skip

    def caption(self) -> str:
        times = f"{seconds_text(self.total_s)} a step on {self.where}"
        work = f"{self.flops:.3g} FLOPs ({', '.join(self.formats) or 'none in matrices'}), {self.tflops:.3g} TFLOP/s"
        said = f", messages {seconds_text(self.message_s)}" if self.message_s else ""
        busy = f"GPU busy {self.utilisation:.0%} of it, {len(self.kernels):,} operators{said}"
        floors = dict.fromkeys(record.name for record in self.kernels if record.bound == NOT_MODELLED)
        odd = dict.fromkeys(record.line for record in self.kernels if record.bound == "odd rows")
        wide = f"rows that are no multiple of 16 bytes slow products down: {'; '.join(odd)}" if odd else ""
        least = f"not modelled, so timed as the least they can take: {', '.join(floors)}" if floors else ""
        return "\n".join(
            filter(None, (f"{times}; {busy}; {work}", str(self.evidence), wide, least, self.machine.caveat))
        )


def _step(events: Sequence[Event], number: int) -> Sequence[Event]:
    """Return the events of a step, the first one being number 1."""
    ends = [-1, *(index for index, event in enumerate(events) if isinstance(event, Step))]
    return events[ends[number - 1] + 1 : ends[number]]


def _matrix_flops(events: Sequence[Event]) -> Counter[str]:
    """Return by number format how many operations kernels do that a formula counts: products, convolutions, attention.

    What a captured graph does is not among them.
    """
    flops: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Kernel) and event.cost.by_formula:
            flops[event.cost.rate] += event.cost.flops
    return flops
