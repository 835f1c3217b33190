"""Contents of a report: values of a run, and forecasts for other GPUs and settings."""

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from simgpu.clock.events import FIRST_BATCH, LOADING
from simgpu.clock.evidence import Evidence
from simgpu.clock.lines import Error, Line, Row
from simgpu.forecasts.time_forecast import TimeForecast
from simgpu.forecasts.whatif import Basis, Option, options, priced, what_if
from simgpu.ground.device_kind import KINDS
from simgpu.ground.units import seconds_text
from simgpu.machine import gpus
from simgpu.machine.gpus import GPU
from simgpu.machine.hosts import Host
from simgpu.reports.compiled_step import CompiledStep
from simgpu.reports.growth import Growth
from simgpu.reports.rule import Suspect, WaitRule
from simgpu.reports.rules import RULES
from simgpu.reports.rules.memory_grows import MemoryGrows

_MANY_STEPS = 1_000_000  # of memory that grows: more than most runs have
_FEW = 3  # times: less often is no habit in a run without steps, or of one, which has the preparations too
_WAITS = [rule for rule in RULES.values() if issubclass(rule, WaitRule)]
_ENDLESS = 500  # batches: the epoch of a loader that does not know how many it has
_DAY_S = 86_400.0  # an epoch that takes longer has no end that anybody waits for


@dataclass(frozen=True)
class Kernel:
    """What the kernels of one operator take in a step: how often, seconds, share of the step, and what bounds them."""

    name: str
    count: float
    seconds: float
    share: float
    bound: str
    flops: float
    bytes: float


@dataclass(frozen=True, repr=False)
class Values:
    """What a program did on simulated GPUs. Times in seconds and sizes in bytes; rows are means over recorded steps.

    - `gpu`, `gpus`: the row of `simgpu.gpus`, and how many of them compute;
    - `fits`, `capacity`, `peak`: whether the program found the memory it asked for, how much there is, the most bytes;
    - `owners`: whose the bytes at the peak are: weights, gradients, optimizer, activations, others (they sum to it);
    - `peak_line`, `memory_lines`: which of the program's lines had allocated most of them, and all of these lines;
    - `growth`: lines whose values keep more memory alive from step to step; `growth_turns`: steps it was sought in;
    - `launching`: the share in which the GPU waits since the host launches one operation after the other;
    - `steps`, `step_kind`, `recorded`: how many steps, how they were found, how many the rows are means over;
    - `odd`: how many steps are left out, which did what the others do not; `once`: what is left out, and how long it
      takes each time: that, and the first batches of loaders;
    - `trainings`: where there are several, how long a step of each takes (0: not recorded), and how many each has; all
      other rows are of the first;
    - `own`: what the program itself does on the CPU in a step, by line, as this machine does it; no other time has it;
    - `step_time`, `busy`, `idle`: seconds a step; the share of it, 0 to 1, in which the GPU computes, or does not;
    - `phases`: seconds of a step by what the GPU does or waits for; empty where nothing tells them apart;
    - `data_ms`: what a batch of a DataLoader was said to take; None for what it took on this machine;
    - `shapes`: whether only shapes were computed, so that what the program read of values means nothing;
    - `waits`: where the GPU computes nothing since the host waits, copies or loads data, by line, longest first;
    - `wait_count`: how often the host does so in a step, also at a line whose idle time counts as that of another;
    - `copies`, `launches`: copies over the bus and launches of kernels by line;
    - `kernels`: the operators whose kernels take most time;
    - `host`: what the host takes for a step, in seconds by part of `hosts.PARTS`; empty where it launches and no more;
    - `habits`: habits of the program that cost it results, time or memory, with codes that stay (`remarks`);
    - `errors`: what would have gone wrong on a GPU; `failure`: the one that ended the program, or None;
    - `compiled`: what a step would take with its models compiled, where that was asked for, or None;
    - `evidence`: how far such times were from published ones;
    - `ranks`: the steps that each rank had done, where the program has started ranks;
    - `simulated`, `real`: how long the whole run took on the GPU's clock and here.
    """

    gpu: gpus.GPU
    gpus: int
    capacity: int
    peak: int
    owners: dict[str, int]
    memory_lines: list[Row]
    growth: list[Growth]
    growth_turns: int
    steps: int
    trainings: list[Row]
    step_kind: str
    recorded: int
    odd: int
    once: list[Row]
    own: list[Row]
    step_time: float
    busy: float
    launching: float
    phases: dict[str, float]
    data_ms: float | None
    shapes: bool
    waits: list[Row]
    wait_count: float
    copies: list[Row]
    launches: list[Row]
    kernels: list[Kernel]
    host: dict[str, float]
    habits: list[Suspect]
    errors: list[Error]
    failure: Error | None
    compiled: CompiledStep | None
    evidence: Evidence
    simulated: float
    real: float
    basis: Basis = field(repr=False)
    must_read: frozenset[tuple[str, int, str]] = field(default=frozenset(), repr=False)  # lines that have to wait
    # lines where PyTorch itself reads or copies something, and why: "check", "size" or "index"; or where a copy that
    # asks not to wait is "unpinned"
    asking: dict[tuple[str, int, str], str] = field(default_factory=dict, repr=False)
    epochs: dict[tuple[str, int, str], int] = field(default_factory=dict, repr=False)  # batches of a loader, by line
    kind: str = "cuda"  # the device that the program asked for: "cuda", "mps" or "xpu"
    has_compiled: bool = False  # whether PyTorch has compiled anything
    price: float | None = None
    run_steps: int | None = None
    ranks: dict[int, int] = field(default_factory=dict)

    @property
    def idle(self) -> float:
        """The share of a step, 0 to 1, in which the GPU computes nothing."""
        return 1 - self.busy

    @property
    def used(self) -> bool:
        """Whether the program has asked a GPU for anything: memory, a copy or a computation."""
        return bool(self.peak or self.launches or self.copies or self.errors)

    @property
    def fits(self) -> bool:
        """Whether all the memory that the program asked for was there."""
        return not any(error.kind == "out of memory" for error in self.errors)

    @property
    def peak_line(self) -> Line | None:
        """The program's own line that had allocated most of what was alive at the peak."""
        return next((row for row in self.memory_lines if row.line), None)

    @property
    def has_cuda(self) -> bool:
        """Whether the program ran on the face of CUDA, whose graphs and published runs count."""
        return self.kind == "cuda"

    @property
    def pins(self) -> bool:
        """Whether PyTorch pins memory for this kind of device."""
        return KINDS[self.kind].has_pinned_memory

    @property
    def slowdown(self) -> float:
        """How many seconds a second of the GPU's clock took here."""
        return self.real / self.simulated if self.simulated else 0.0

    @cached_property
    def suspects(self) -> list[Suspect]:
        """What to look at first: what spoils results, then memory that grows until the GPU is full, then time.

        Memory that would fill it after a million steps or more stands last, a few bytes of it nowhere. Left out are:
        lines that cost less than 2 % of a step, or less than 5 % where few steps have them; copies to the GPU and
        loading below 10 %, long copies below 5 %, loading for less than 0.5 s of an epoch, its first batch; what
        must be read, by a `GradScaler`, by an optimizer with a closure, or as it decides over the model's next input;
        what comes once, and of a run of one step, or none, also what comes twice. `waits` has them all.
        """
        seconds = {row.parts: row.seconds for row in reversed(self.waits)}  # of two rows of a line the longer one
        habits = [replace(one, seconds=seconds.get(one.parts, 0.0)) for one in self.habits]
        named = {one.parts for one in habits}
        explained = {code for one in habits for code in RULES[one.code].explains}
        waits = [one for row in self.waits if self._counts(row, named) and (one := self._suspected(row))]
        waits = [one for one in waits if one.code not in explained]
        grown = [one for growth in self.growth if (one := MemoryGrows.named(growth))]
        results, times = ([one for one in habits if (one.about == "result") is wanted] for wanted in (True, False))
        left_steps = (self.capacity - self.peak) / (sum(one.bytes for one in grown) or 1)
        fills = left_steps < _MANY_STEPS or not all(one.bytes for one in grown)  # of graphs, the memory of the host
        if not self.fits:  # what has filled the memory is the cause
            return [*grown, *results, *times, *waits]
        return [*results, *(grown if fills else []), *times, *waits, *([] if fills else grown)]

    def _counts(self, row: Row, named: set[tuple[str, int, str]]) -> bool:
        """Return whether a line that keeps the GPU waiting does so by habit, and is not named already."""
        if row.parts in named or (row.parts in self.must_read and row.cause != LOADING) or row.cause == FIRST_BATCH:
            return False
        times = row.count * self.recorded
        return times >= (_FEW if self.steps < 2 else 2 if self.recorded > 1 else 0)

    def _suspected(self, row: Row) -> Suspect | None:
        """Return the remark on a line that keeps the GPU waiting, None where it costs too little."""
        epoch_s = row.seconds / max(row.count, 1e-9) * self.epochs.get(row.parts, _ENDLESS)
        asking = self.asking.get(row.parts, "wait" if self.pins or "to the GPU" not in row.cause else "never pinned")
        for rule in _WAITS:
            advice = rule.advice(row.cause, asking)
            if advice and rule.is_worth(row, self.step_time, epoch_s):
                share = f" ({row.seconds / self.step_time:.0%})" if self.step_time else ""
                known = rule.code == "data-loading" and row.parts in self.epochs and epoch_s < _DAY_S
                epoch = f", {seconds_text(epoch_s)} an epoch" if known else ""
                length = f"{seconds_text(row.seconds)} {'a step' if self.steps else 'in all'}"
                said = f"The GPU is idle for {length}{share}{epoch}: {row.cause}. {advice}"
                return Suspect(*row.parts, row.seconds, row.bytes, said, rule.code, rule.about)
        return None

    def what_if(
        self, *, gpu: str | None = None, gpus: int | None = None, batch: float | str = 1.0, amp: bool = False,
        fused: bool = False, foreach: bool = False, pinned: bool = False, compiled: bool | str = False,
        host: str | Host | None = None, price: float | None = None, steps: int | None = None,
    ) -> Option:  # fmt: skip
        """Return what the same program would take with another GPU, several, or another setting; all may be combined.

        - `gpu`: a row of `simgpu.gpus`; `gpus`: so many ranks of DistributedDataParallel, each with the whole batch;
        - `batch`: the batch of the run is 1.0, so that 2.0 doubles it; "max" is the largest that fits;
        - `amp`: products in 16 bits, as under autocast; `fused`: the optimizer's step in one kernel, `foreach`: in one
          operator for all tensors instead of one for each;
        - `pinned`: copies from pinned memory beside the computation; `compiled`: one launch for each part of a step
          between two waits, as with CUDA graphs, which `torch.compile(mode="reduce-overhead")` uses; "launches": each
          kernel launched without an operator around it, as `torch.compile` does in its default mode;
        - `host`: a row of `simgpu.hosts`, or a `simgpu.Host`;
        - `price` an hour and GPU and `steps` of the recorded batch give `hours` and `cost`.

        `assumptions` of what is returned says what each of these takes for granted. Raises ValueError for a GPU that is
        not in the table, and for what is no number above 0.
        """
        price, steps = self.price if price is None else price, self.run_steps if steps is None else steps
        asked: dict[str, Any] = {
            "gpu": gpu, "gpus": gpus, "batch": batch, "amp": amp, "fused": fused, "foreach": foreach, "pinned": pinned,
            "compiled": compiled, "host": host, "price": price, "steps": steps,
        }  # fmt: skip
        known = repr(asked)
        if known not in self._answers:
            self._answers[known] = what_if(self.basis, **asked)
        return self._answers[known]

    @cached_property
    def _answers(self) -> dict[str, Option]:
        """What was asked before, which several parts of a report ask for."""
        return {}

    def on(self, gpu: str | GPU, *, host: str | Host | None = None) -> TimeForecast:
        """Return what the last recorded step takes on another machine, as a forecast tells it: kernels, parts, lines.

        The events of the run are played there; the program is not run again. `host` None is that of the run, else a row
        of `simgpu.hosts` or a `simgpu.Host`. Raises ValueError for what is not in these tables, and for a GPU whose
        maker states no rates.
        """
        return TimeForecast.of(self.basis.on(priced(gpu), host))

    @cached_property
    def options(self) -> list[Option]:
        """What the report shows: the run itself, other settings on its GPU, and other GPUs."""
        without = ["compiled"] * (not self.has_cuda) + ["pinned copies"] * (not self.pins)
        return [one for one in options(self.what_if, self.gpu.name) if one.name not in without]

    def to_dict(self) -> dict[str, Any]:
        """Return the values as dicts, lists, numbers and text."""
        left_out = ("basis", "gpu", "evidence", "must_read", "asking", "epochs", "kind")
        values = {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__ if name not in left_out}
        more = ("used", "fits", "idle", "slowdown", "peak_line", "suspects", "options")
        values |= {name: _plain(getattr(self, name)) for name in more}
        label = {"regime": self.evidence.regime, "error": self.evidence.error, "label": self.evidence.long}
        return {"gpu": self.gpu.name, "evidence": label, **values}

    def json(self) -> str:
        """Return `to_dict()` as JSON."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {**asdict(value), **_extra(value)} if hasattr(value, "__dataclass_fields__") else value


def _extra(value: Any) -> dict[str, Any]:
    extra = {"where": value.where} if isinstance(value, Line) else {}
    return extra | ({"gain": value.gain} if isinstance(value, CompiledStep) else {})
