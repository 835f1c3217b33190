"""How long would a step take on a GPU, and which kernels take the time? Records of the clock, grouped."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from simgpu.clock import evidence
from simgpu.clock.journal import Record
from simgpu.ground import tables
from simgpu.ground.units import seconds_text
from simgpu.machine.machines import Machine

BOUNDS = ("compute", "power", "bandwidth", "latency")
_KINDS = {  # the first whose words are in the name of an operator
    "attention": ("attention",),
    "convolutions": ("convolution",),
    "matrix products": ("mm", "dot", "addmv", "mv", "rnn", "lstm", "gru"),
    "normalisation": ("norm",),
    "optimizer": ("_foreach", "_fused"),
    "copies": ("copy_", "clone", "cat", "index", "embedding", "gather", "scatter", "roll", "pad", "stack", "repeat"),
    "reductions": ("sum", "mean", "softmax", "loss", "max", "min", "pool", "cumsum", "var", "argmax", "topk", "sort"),
}


def kind_of(name: str) -> str:
    """Return which kind of operators one belongs to, such as "matrix products"."""
    return next((kind for kind, words in _KINDS.items() if any(word in name for word in words)), "element by element")


@dataclass(frozen=True)
class Share:
    """What part of a step one kernel, or one kind of kernels, has.

    `by_bound` are its seconds by what bounds them, compute, power (the card's watts hold arithmetic back), bandwidth or
    latency; `bound` is the one with most of them.
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
        by_bound = {bound: times_ns[bound] / 1e9 for bound in BOUNDS}
        most = max(times_ns, key=times_ns.__getitem__)
        return cls(name, len(records), times_ns.total() / 1e9, flops, nbytes, most, by_bound)


@dataclass(frozen=True, repr=False)
class TimeForecast(tables.Table):
    """What one step would take on a GPU, in seconds of the simulated clock.

    - `total_s`: from the first launch until the GPU is done; `busy_s`: how long the GPU works in it; `host_s`: how
      long the host launches; `message_s`: how long messages between ranks take;
    - `flops`: operations of matrix products, convolutions and attention; `formats`: the number formats of these;
    - `by_kernel`, `by_kind`: a `Share` for each operator, for each kind of them; `by_bound`: seconds by what bounds;
    - `records`: one `Record` for each launch, kernel and message, times in ns;
    - `machine`: the GPU, its host and its link; `ranks`: how many of them do the same at the same time.
    """

    machine: Machine
    total_s: float
    host_s: float
    flops: int
    formats: tuple[str, ...]
    records: tuple[Record, ...] = field(repr=False)
    ranks: int = 1

    @property
    def spec(self) -> str:
        """The name of the GPU."""
        return self.machine.gpu.name

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
        """How long the GPU works, in seconds."""
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
        """Seconds of kernels by what bounds them: compute, power, bandwidth, or latency, the least time of a kernel."""
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
        caveat = self.machine.caveat
        return f"{times}; {busy}; {work}\n{self.evidence}" + (f"\n{caveat}" if caveat else "")
