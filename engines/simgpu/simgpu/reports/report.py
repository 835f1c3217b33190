"""What is in a report? Values that were measured in a run, and what follows from them for other GPUs and settings."""

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from simgpu.clock.events import FIRST_BATCH, LOADING
from simgpu.clock.evidence import Evidence
from simgpu.clock.lines import Error, Line, Row
from simgpu.forecasts.time_forecast import TimeForecast
from simgpu.forecasts.whatif import Basis, Option, options, priced, what_if
from simgpu.ground.units import bytes_text, seconds_text
from simgpu.machine import gpus
from simgpu.machine.gpus import GPU
from simgpu.machine.hosts import Host
from simgpu.reports.compiled_step import CompiledStep
from simgpu.reports.growth import Growth
from simgpu.reports.remarks import Suspect

_MANY_STEPS = 1_000_000  # of memory that grows: more than most runs have
_WORTH = 0.02  # the share of a step from which on a line is worth a look
_WORTH_SELDOM = 0.05  # of one that fewer than half of the steps have, such as a value that is read once an epoch
_WORTH_DATA = 0.1  # of one that loads or copies data: nearly every program has such lines
_WORTH_WORKERS_S = 0.5  # of an epoch, that a loader keeps the GPU waiting: less is soon used up by starting workers
_FEW = 3  # times: less often is no habit in a run without steps, or of one, which has the preparations too
_ENDLESS = 500  # batches: the epoch of a loader that does not know how many it has
_WORTH_COPY_S = 1e-4  # of a copy: less than that is quick enough
_LONG_COPY_S = 1e-3  # of a copy: from this on a smaller share of a step is worth a look
_COPIES = 8  # in a step: with more, as of each row of a batch, the time of all of them counts
_WORTH_BYTES = 4096  # that each step leaves: less than that are numbers


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
    - `growth`: lines whose values keep more memory alive from step to step;
    - `launching`: the share in which the GPU waits since the host launches one operation after the other;
    - `steps`, `step_kind`, `recorded`: how many steps, how they were found, how many the rows are means over;
    - `odd`: how many steps are left out since they have more than ten times the operations of the others;
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
    - `simulated`, `real`: how long the whole run took on the GPU's clock and here.
    """

    gpu: gpus.GPU
    gpus: int
    capacity: int
    peak: int
    owners: dict[str, int]
    memory_lines: list[Row]
    growth: list[Growth]
    steps: int
    step_kind: str
    recorded: int
    odd: int
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
    # lines where PyTorch itself reads or copies something, and why: "check", "size" or "index"
    asking: dict[tuple[str, int, str], str] = field(default_factory=dict, repr=False)
    epochs: dict[tuple[str, int, str], int] = field(default_factory=dict, repr=False)  # batches of a loader, by line
    price: float | None = None
    run_steps: int | None = None

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
        seconds = {row.parts: row.seconds for row in self.waits}
        habits = [replace(one, seconds=seconds.get(one.parts, 0.0)) for one in self.habits]
        named = {one.parts for one in habits}
        worth = [row for row in self.waits if self._is_worth(row, named)]
        waits = [self._suspected(row) for row in worth]
        grown = [
            Suspect(*one.parts, 0.0, one.bytes_per_step, _grows(one), "memory-grows")
            for one in self.growth
            if one.graph or one.bytes_per_step >= _WORTH_BYTES
        ]
        results, times = ([one for one in habits if (one.about == "result") is wanted] for wanted in (True, False))
        left_steps = (self.capacity - self.peak) / (sum(one.bytes for one in grown) or 1)
        fills = left_steps < _MANY_STEPS
        return [*results, *(grown if fills else []), *times, *waits, *([] if fills else grown)]

    def _is_worth(self, row: Row, named: set[tuple[str, int, str]]) -> bool:
        """Return whether a line that keeps the GPU waiting is worth a remark of its own."""
        if row.parts in named or row.parts in self.must_read or row.cause == FIRST_BATCH:
            return False
        times = row.count * self.recorded
        if (self.steps < 2 and times < _FEW) or (self.recorded > 1 and times < 2):
            return False
        worth = _WORTH if row.count >= 0.5 else _WORTH_SELDOM
        if row.cause == LOADING:
            return row.seconds >= _WORTH_DATA * self.step_time and self._of_an_epoch(row) >= _WORTH_WORKERS_S
        if "a copy to the GPU" in row.cause:
            share = _WORTH_SELDOM if row.seconds >= _LONG_COPY_S * max(row.count, 1) else _WORTH_DATA
            least_s = _WORTH_COPY_S * min(max(row.count, 1), _COPIES)
            return row.seconds >= max(share * self.step_time, least_s)
        return row.seconds >= worth * self.step_time

    def _of_an_epoch(self, row: Row) -> float:
        """Return the seconds of an epoch for which a loader keeps the GPU waiting."""
        return row.seconds / max(row.count, 1e-9) * self.epochs.get(row.parts, _ENDLESS)

    def _suspected(self, row: Row) -> Suspect:
        """Return the remark on a line that keeps the GPU waiting."""
        reads = self.asking.get(row.parts, "wait")
        kind = next((kind for words, kind in _KINDS.items() if words in row.cause), reads)
        kind = reads if kind == "copy" and reads == "index" else kind
        share = f" ({row.seconds / self.step_time:.0%})" if self.step_time else ""
        known = kind == "data loading" and row.parts in self.epochs
        epoch = f", {seconds_text(self._of_an_epoch(row))} an epoch" if known else ""
        said = f"The GPU is idle for {seconds_text(row.seconds)} a step{share}{epoch}: {row.cause}. {_ADVICE[kind]}"
        return Suspect(*row.parts, row.seconds, row.bytes, said, _CODES[kind])

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
        return options(self.what_if, self.gpu.name)

    def to_dict(self) -> dict[str, Any]:
        """Return the values as dicts, lists, numbers and text."""
        left_out = ("basis", "gpu", "evidence", "must_read", "asking", "epochs")
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
    extra |= {"gain": value.gain} if isinstance(value, CompiledStep) else {}
    return {**extra, "about": value.about} if isinstance(value, Suspect) else extra


def _grows(growth: Growth) -> str:
    value = "The value that this line makes keeps it"
    if growth.held_by:
        value = f"{growth.held_by} keeps what {growth.made_at.where} makes"
    instead = "Keep a number (`.item()`) or a `.detach()`ed tensor instead"
    if not growth.bytes_per_step:
        return f"{value}, and its graph grows in each step by that of the step, in the host's memory. {instead}."
    said = f"Each step leaves {bytes_text(growth.bytes_per_step)} more memory alive. {value}. "
    if growth.graph and growth.bytes_per_step < _WORTH_BYTES:
        return f"{said}The graph stays as well, without the activations, which `backward()` has freed. {instead}."
    if growth.graph:
        return f"{said}{instead}: a tensor with a graph keeps all activations of its step."
    if growth.part:
        return f"{said}It is a part of a larger memory, which stays whole. Keep a number (`.item()`) or a `.clone()`."
    return f"{said}Drop what you no longer need."


_ADVICE = {
    "wait": "After that the GPU has nothing to do until the host launches again. Read the value less often, or later.",
    "size": "No value is read in this line, but an operation needs one on the host, such as how many elements a mask "
    "of booleans picks. `torch.where` needs none.",
    "check": "PyTorch reads the arguments of this distribution to check them. Once the program is right, write "
    "`validate_args=False`, or call `torch.distributions.Distribution.set_default_validate_args(False)`.",
    "index": "This indexes a tensor on the GPU with one on the CPU, so PyTorch copies the indices first. Make them on "
    "the GPU, as by `torch.randperm(n, device=x.device)`, or move them there once, before the loop.",
    "message": "Messages between ranks hide behind computation where batches are larger, or buckets begin earlier.",
    "data loading": "Prepare batches ahead: more workers, less work for each sample.",
    "copy": "Copy larger pieces, from pinned memory, with `non_blocking=True`.",
    "copy between GPUs": "`DataParallel` copies the whole model to each GPU in each step, `DistributedDataParallel` "
    "does not. Otherwise send fewer bytes, or let the GPU compute something else meanwhile.",
    "pinned copy": "It comes from pinned memory, as it should. Send fewer bytes, such as uint8 for pictures, or send "
    "the next batch meanwhile, on a stream of its own.",
}

_KINDS = {  # by words of a cause
    LOADING: "data loading", "the GPU waits for a copy to another": "copy between GPUs",
    "the GPU waits for a copy": "pinned copy", "to the GPU": "copy",
    "the GPU waits for": "message",
}  # fmt: skip
_CODES: dict[str, str] = {
    **dict.fromkeys(("wait", "check", "size"), "host-waits"),
    **dict.fromkeys(("copy", "index", "pinned copy", "copy between GPUs"), "copies-keep-waiting"),
    "message": "messages-keep-waiting", "data loading": "data-loading",
}  # fmt: skip
