"""What-if replays: the same program on another GPU, on several, or with another setting.

Each change is a function from events to events, with a sentence that says what it takes for granted.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeGuard

import torch

from simgpu.clock import events as kinds
from simgpu.clock.clock import Captured
from simgpu.clock.events import GRADIENTS, OPTIMIZER, SMALL_BYTES, Copy, Event, Graph, Hold, Kernel, Message, Step, Wait
from simgpu.clock.evidence import Evidence
from simgpu.clock.player import play
from simgpu.device.timelines import Timeline
from simgpu.ground import arguments
from simgpu.ground.quiet import uncollected
from simgpu.ground.storages import local, states_of
from simgpu.machine import gpus, hosts
from simgpu.machine.cluster import Cluster
from simgpu.machine.gpus import GPU
from simgpu.machine.hosts import Host
from simgpu.machine.machines import Machine
from simgpu.machine.operator_table import ATTENTION, CONVOLUTIONS, PRODUCTS, kind_of
from simgpu.machine.prices import Cost

OTHERS = ("T4", "RTX 4090", "A100 80GB", "H100 SXM", "B200")  # which GPUs a report shows beside its own
LAUNCHES = "launches"  # of kernels compiled without graphs
_PRODUCTS = (ATTENTION, CONVOLUTIONS, PRODUCTS)
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")  # the optimizers that take fused=True
_AMP_SHARE = 0.6  # of the bytes that grow with the batch: forecasts of a ViT, a CNN and an MLP say 0.54 to 0.67
_BUCKET_BYTES = 25 * 2**20  # of gradients that DistributedDataParallel sends at once


@dataclass(frozen=True)
class Optimizer:
    """Record of an optimizer's step: its class, and how many gradients it found, of how many bytes.

    `fused_bytes` is what one kernel would read and write that does the whole step: gradients once, parameters and
    states twice.
    """

    name: str = ""
    fused_bytes: int = 0
    gradient_bytes: int = 0
    parameters: int = 0

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> "Optimizer":
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        gradient_bytes = sum(local(p.grad).nbytes for p in parameters)
        changed_bytes = sum(local(tensor).nbytes for tensor in (*parameters, *states_of(optimizer)))
        return cls(type(optimizer).__name__, gradient_bytes + 2 * changed_bytes, gradient_bytes, len(parameters))


@dataclass(frozen=True)
class Basis:
    """Basis of the options: the events of a program, its counted steps, and its memory."""

    machine: Machine
    gpus: int
    used: int  # of these GPUs
    events: tuple[Event, ...] = field(repr=False)
    first: int
    last: int
    capacity: int
    owners: dict[str, int]
    scaling: int  # bytes of the peak that grow with the batch
    optimizer: Optimizer
    narrow: Callable[[], tuple[int, int] | None] | None = field(default=None, repr=False)  # `memory` in autocast

    @property
    def peak(self) -> int:
        return sum(self.owners.values())

    def memory(self, amp: bool) -> tuple[int, int]:
        """Return the peak, with autocast if wanted, and the bytes of it that grow with the batch."""
        if not amp or _is_narrow(self):
            return self.peak, self.scaling
        saved = math.floor((1 - _AMP_SHARE) * self.scaling)
        return (self.narrow and self.narrow()) or (self.peak - saved, self.scaling - saved)

    def on(self, spec: GPU, host: str | Host | None = None) -> "Basis":
        """Return the same program on other GPUs, of all the room that these have, and if wanted with another host."""
        machine = self.machine.with_gpu(spec)
        machine = machine if host is None else replace(machine, host=hosts.get(host))
        return replace(self, machine=machine, capacity=spec.room_bytes)


@dataclass(frozen=True)
class Option:
    """What the program would take: whether it `fits` into `capacity` bytes, its `peak`, seconds a step, share idle.

    `batch` is that of each GPU beside that of the run. `steps` of the recorded batch take `hours` and `cost`; without
    a number of steps, or a price, they are None. `assumptions` says what was taken for granted; `evidence` how far such
    times were from published ones.
    """

    name: str
    gpu: str
    gpus: int
    batch: float
    fits: bool
    peak: int
    capacity: int
    step_time: float
    idle: float
    evidence: Evidence
    assumptions: tuple[str, ...]
    steps: int | None = None
    hours: float | None = None
    cost: float | None = None


def what_if(
    basis: Basis, *, gpu: str | None, gpus: int | None, batch: float | str, amp: bool, fused: bool, foreach: bool,
    pinned: bool, compiled: bool | str, host: str | Host | None, price: float | None, steps: int | None,
) -> Option:  # fmt: skip
    """Return the option that `Report.what_if` describes, of a run or of a forecast."""
    ranks = 1 if gpus is None else arguments.whole("gpus", gpus)
    if ranks > 1 and basis.used > 1:
        raise ValueError(f"gpus is {gpus}, but the program has {basis.used} GPUs already: run it with another number")
    own = basis.machine.gpu
    spec = own if gpu is None else priced(gpu)
    if ranks > 1 and not _has_links(spec):
        raise ValueError(f"gpus is {gpus}, but nothing connects several of {spec.name}")
    if compiled not in (True, False, LAUNCHES):
        raise ValueError(f"compiled is {compiled!r}, it may be True, False or {LAUNCHES!r}")
    there = basis if spec is own else basis.on(spec)
    if host is not None:
        there = replace(there, machine=replace(there.machine, host=hosts.get(host)))
    capacity = there.capacity
    batch = _largest(basis, capacity, amp) if batch == "max" else arguments.positive("batch", batch)
    other = there.machine.host
    possible: list[tuple[bool, str, str, Callable[[Sequence[Event]], Sequence[Event]]]] = [
        (spec is not own, spec.name, _OTHER + _scores_text(basis, spec), list),  # the same events
        (batch != 1, f"batch × {batch:.3g}", _BATCH, lambda events: [_scaled(one, batch) for one in events]),
        (amp, "autocast", _amp_text(basis) if amp else "", lambda events: _with_amp(events, basis)),
        (fused, "fused optimizer", _fused_text(basis), lambda events: _with_fused(events, basis)),
        (foreach, "foreach optimizer", _foreach_text(basis), _with_foreach),
        (pinned, "pinned copies", _PINNED, _with_pinned),
        (host is not None, f"host {other.name}", str(other), list),
        (compiled == LAUNCHES, "compiled, launches", _BARE, _with_bare_launches),
        (compiled is True, "compiled", _COMPILED, _with_graphs),
        (ranks > 1, f"{ranks} GPUs", _DDP, lambda events: _with_ranks(events, basis, ranks)),
    ]
    changes = [(name, text, change) for wanted, name, text, change in possible if wanted]
    events: Sequence[Event] = basis.events
    for _, _, change in changes:
        events = change(events)
    machine = there.machine if ranks == 1 else replace(there.machine, link=Cluster(spec.name, per_machine=8))
    with uncollected():
        timeline = Timeline.of(play(events, machine, basis.gpus), basis.first, basis.last)
    peak, scaling = basis.memory(amp)
    peak += math.floor(scaling * (batch - 1))
    step_s = timeline.total_ns / (basis.last - basis.first) / 1e9
    names, texts = [name for name, _, _ in changes], tuple(text for _, text, _ in changes)
    hours = None if steps is None else arguments.whole("steps", steps) * step_s / (batch * ranks) / 3600
    cost = None if hours is None or price is None else hours * arguments.positive("price", price) * ranks * basis.used
    return Option(
        ", ".join(names) or "as it ran", spec.name, ranks * basis.used, batch, peak <= capacity, peak, capacity, step_s,
        1 - timeline.utilisation(), timeline.evidence, texts, steps, hours, cost,
    )  # fmt: skip


def options(ask: Callable[..., Option], own: str) -> list[Option]:
    """Return the rows of a report: the run itself, each setting alone, and other GPUs."""
    settings = ({}, {"batch": 2}, {"batch": 0.5}, {"amp": True}, {"fused": True}, {"pinned": True}, {"compiled": True})
    answers = [ask(**setting) for setting in settings]
    answers += [ask(gpu=name) for name in OTHERS if name != own]
    several = answers[0].gpus == 1 and _has_links(gpus.get(own))
    return [*answers, ask(gpus=8)] if several else answers


def _has_links(gpu: gpus.GPU) -> bool:
    """Return whether several of these GPUs can send one another messages: Apple's are one to a computer."""
    return bool(gpu.bus_gbps or gpu.nvlink_gbps)


def priced(given: str | gpus.GPU, argument: str = "gpu") -> gpus.GPU:
    """Return a GPU of the table. Raises ValueError, which names the argument, for one whose maker states no rates."""
    row = given if isinstance(given, gpus.GPU) else gpus.get(given, argument)
    if not row.peak_tflops:
        raise ValueError(f"{argument} is {row.name!r}, whose maker states no rates")
    return row


_OTHER = "the same kernels at the rates of the other data sheet, and the same host"
_BATCH = (
    "operations and bytes of forward and backward passes, copies, activations and the loading of data grow with the "
    "batch; weights, gradients, optimizer, launches and data that lay on the GPU before do not"
)
_AMP = (
    "products compute in 16 bits with half the bytes, weights are cast once a step, and {}; the host's time for casts "
    "is left out, other kernels are taken as they are"
)
_AMP_MEMORY = "what grows with the batch takes 0.6 of its bytes", "memory is that of the program run again in autocast"
_PINNED = "copies to the GPU come from pinned memory with non_blocking=True, so that the host does not wait for them"
_COMPILED = (
    "the host launches each part of a step between two waits at once, as CUDA graphs do; the kernels are the same, and "
    "fusing them would save more"
)
_BARE = (
    "each kernel is launched without an operator of PyTorch around it, views and autograd's nodes take nothing; the "
    "kernels are the same, and fusing them would save more"
)
_DDP = (
    "DistributedDataParallel: every GPU has the whole batch of the run, gradients are summed in buckets of 25 MiB "
    "beside the backward pass; up to 8 GPUs a machine, and steps of all of them count the samples of as many"
)


def _scores_text(basis: Basis, spec: GPU) -> str:
    """Return what the same kernels leave out on GPUs that have no fused attention in bfloat16 (`ground.attention`)."""
    oldest = (8, 0)
    lacks = (spec.compute_capability or oldest) < oldest <= (basis.machine.gpu.compute_capability or oldest)
    fused = (event for event in basis.events if isinstance(event, Kernel) and event.cost.attention)
    wide = lacks and any(event.cost.rate == "bf16" for event in fused)
    return "; attention in bfloat16 is the plain formula there: slower, with all its scores in memory" if wide else ""


# ---- another batch ----------------------------------------------------------------------------------------------
def _largest(basis: Basis, capacity: int, amp: bool) -> float:
    """Return the largest batch that fits, beside that of the run. Raises ValueError where memory has no part of it."""
    peak, scaling = basis.memory(amp)
    if not scaling:
        raise ValueError('batch is "max", but no memory at the peak grows with the batch')
    left = capacity - (peak - scaling)
    if left <= 0:
        raise ValueError('batch is "max", but weights, gradients and optimizer alone do not fit')
    return left / scaling


def _scaled(event: Event, factor: float) -> Event:
    match event:
        case Kernel() if event.phase not in (OPTIMIZER, GRADIENTS):
            return replace(event, cost=_times(event.cost, factor))
        case Graph():
            work = (captured._replace(cost=_times(captured.cost, factor)) for captured in event.work)
            return replace(event, work=tuple(work))
        case Copy() if event.nbytes > SMALL_BYTES:
            return replace(event, nbytes=math.ceil(event.nbytes * factor))
        case kinds.Work() if event.name == kinds.LOADING:
            return replace(event, length_ns=math.ceil(event.length_ns * factor))
        case _:
            return event


def _times(cost: Cost, factor: float) -> Cost:
    sizes = {name: math.ceil(getattr(cost, name) * factor) for name in ("flops", "nbytes", "extra_bytes", "odd_bytes")}
    again, block, whole = cost.again
    return replace(cost, again=(math.ceil(again * factor), block, math.ceil(whole * factor)), **sizes)


# ---- autocast ---------------------------------------------------------------------------------------------------
def _is_product(event: Event) -> TypeGuard[Kernel]:
    return isinstance(event, Kernel) and event.phase not in (OPTIMIZER, GRADIENTS) and kind_of(event.name) in _PRODUCTS


def _amp_text(basis: Basis) -> str:
    changed = _AMP.format(_AMP_MEMORY[bool(basis.narrow and basis.narrow())])
    return "most products compute in 16 bits already: nothing changes" if _is_narrow(basis) else changed


def _is_narrow(basis: Basis) -> bool:
    """Return whether half of the operations in products, or more, are in 16 bits as the program is."""
    flops = [(event.cost.rate in ("fp16", "bf16"), event.cost.flops) for event in basis.events if _is_product(event)]
    return sum(flops for narrow, flops in flops if narrow) * 2 >= max(sum(flops for _, flops in flops), 1)


def _with_amp(events: Sequence[Event], basis: Basis) -> list[Event]:
    """Compute products in 16 bits; those with weights read and write these once more in all, as casts do.

    What casts take the host is left out, as of a copy of the weights that is kept in 16 bits.
    """
    if _is_narrow(basis):
        return list(events)
    layers = sum(_is_wide(event) and kind_of(event.name) != ATTENTION for event in events)
    cast_bytes = math.ceil(1.5 * basis.owners["weights"] * max(basis.last, 1) / max(layers, 1))
    changed: list[Event] = []
    for event in events:
        if _is_wide(event):
            cost = replace(_times(event.cost, 0.5), rate="fp16", flops=event.cost.flops)
            cast = 0 if kind_of(event.name) == ATTENTION else cast_bytes
            changed.append(replace(event, cost=replace(cost, nbytes=cost.nbytes + cast)))
        else:
            changed.append(event)
    return changed


def _is_wide(event: Event) -> TypeGuard[Kernel]:
    return _is_product(event) and event.cost.rate in ("fp32", "tf32")


# ---- the optimizer ----------------------------------------------------------------------------------------------
def _fused_text(basis: Basis) -> str:
    if basis.optimizer.name not in _FUSED:
        return f"{basis.optimizer.name or 'no optimizer'} has no fused step: nothing changes"
    if _is_fused(basis):
        return "the optimizer is fused already: nothing changes"
    return "one kernel reads parameters, gradients and state once and writes parameters and state"


def _with_fused(events: Sequence[Event], basis: Basis) -> list[Event]:
    """Merge the kernels of an optimizer's step into one."""
    if basis.optimizer.name not in _FUSED or _is_fused(basis):
        return list(events)
    nbytes = basis.optimizer.fused_bytes
    cost = Cost(nbytes // 8, nbytes, host="fused", tensors=basis.optimizer.parameters)
    changed: list[Event] = []
    for _, group in groupby(events, _is_of_step):
        *before, last = group
        if _is_of_step(last):
            changed.append(replace(last, name="_fused_step_", cost=cost))
        else:
            changed += [*before, last]
    return changed


def _is_fused(basis: Basis) -> bool:
    return any(_is_of_step(event) and event.name.startswith("_fused_") for event in basis.events)


def _is_of_step(event: Event) -> TypeGuard[Kernel]:
    return isinstance(event, Kernel) and event.phase == OPTIMIZER


def _foreach_text(basis: Basis) -> str:
    if any(_is_of_step(event) and event.name.startswith(("_foreach_", "_fused_")) for event in basis.events):
        return "the optimizer goes through all tensors at once already: nothing changes"
    return "each operator of the optimizer's step is one for all parameters: as many kernels as one parameter needs"


def _with_foreach(events: Sequence[Event]) -> list[Event]:
    """Merge operators of one name in an optimizer's step into one over all their tensors."""
    changed: list[Event] = []
    for of_step, group in groupby(events, _is_of_step):
        run = list(group)
        if not of_step or any(event.name.startswith(("_foreach_", "_fused_")) for event in run if _is_of_step(event)):
            changed += run
            continue
        by_name: dict[str, list[Kernel]] = {}
        for event in filter(_is_of_step, run):
            by_name.setdefault(event.name, []).append(event)
        changed += [_joined(name, same) for name, same in by_name.items()]
    return changed


def _joined(name: str, same: list[Kernel]) -> Kernel:
    """Return one operator for the tensors of several."""
    costs = [event.cost for event in same]
    cost = replace(
        costs[0], flops=sum(cost.flops for cost in costs), nbytes=sum(cost.nbytes for cost in costs),
        tensors=len(costs), host="light",
    )  # fmt: skip
    return replace(same[-1], name=f"_foreach_{name}", cost=cost, calls=())


# ---- copies -----------------------------------------------------------------------------------------------------
def _with_pinned(events: Sequence[Event]) -> list[Event]:
    """Make copies to the GPU come from pinned memory, without a wait."""
    copies = {event.number for event in events if _is_to_gpu(event)}
    changed: list[Event] = []
    for event in events:
        if isinstance(event, Wait) and event.after in copies:
            continue
        changed.append(replace(event, pinned=True) if _is_to_gpu(event) else event)
    return changed


def _is_to_gpu(event: Event) -> TypeGuard[Copy]:
    return isinstance(event, Copy) and event.direction == "H2D"


# ---- launches ---------------------------------------------------------------------------------------------------
def _with_graphs(events: Sequence[Event]) -> list[Event]:
    """Launch kernels that follow one another in a stream and phase at once."""
    changed: list[Event] = []
    for (_, stream, phase), group in groupby(events, _launched_with):
        run = list(group)
        kernels = [event for event in run if isinstance(event, Kernel)]
        if len(kernels) > 1:
            work = tuple(Captured(stream[0], event.name, "compute", 0, event.cost, "") for event in kernels)
            calls = ("graph", 1), ("graph tree", 1)
            changed.append(Graph(kernels[-1].number, stream, work, phase, kernels[0].line, calls))
        else:
            changed += run
    return changed


def _with_bare_launches(events: Sequence[Event]) -> list[Event]:
    """Launch each kernel without an operator around it, those of a phase as one compiled graph."""
    changed: list[Event] = []
    for (of_kernels, *_), group in groupby(events, _launched_with):
        run = [_bare(event) if isinstance(event, Kernel) else event for event in group]
        changed += [replace(run[0], calls=(("graph", 1),)), *run[1:]] if of_kernels else run
    return changed


def _bare(event: Kernel) -> Kernel:
    return replace(event, cost=replace(event.cost, host="launch", tensors=0), calls=())


def _launched_with(event: Event) -> tuple[bool, tuple[int, int], str]:
    return (True, event.stream, event.phase) if isinstance(event, Kernel) else (False, (0, 0), "")


# ---- ranks ------------------------------------------------------------------------------------------------------
def _with_ranks(events: Sequence[Event], basis: Basis, ranks: int) -> list[Event]:
    """Sum buckets of gradients among ranks, each after its part of the backward pass."""
    total = basis.optimizer.gradient_bytes
    step: list[Event] = []
    changed: list[Event] = []
    for event in events:
        step.append(event)
        if isinstance(event, Step):
            changed += _with_messages(step, total, ranks) if total else step
            step = []
    return changed + step


def _with_messages(step: list[Event], total: int, ranks: int) -> Iterator[Event]:
    """Yield the events of a step, with messages of `total` bytes beside its backward pass."""
    buckets = math.ceil(total / _BUCKET_BYTES)
    backward = [index for index, event in enumerate(step) if _is_backward(event)]
    due = (
        {backward[math.ceil(len(backward) * part / buckets) - 1] for part in range(1, buckets + 1)} if backward else ()
    )
    for index, event in enumerate(step):
        yield event
        if not _is_backward(event):
            continue
        if index in due:
            nbytes, name = math.ceil(total / len(due)), "all_reduce"
            number, group = event.number + 0.5, tuple(range(ranks))
            yield Message(number, event.stream, ("nccl",), name, name, name, nbytes, 0, group, event.line)
        if index == backward[-1]:
            yield Hold(event.stream, event.number + 0.5)


def _is_backward(event: Event) -> TypeGuard[Kernel | Graph]:
    return isinstance(event, Kernel | Graph) and event.phase in ("backward", "recomputation")
