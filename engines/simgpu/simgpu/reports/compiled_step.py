"""Forecast of a recorded step with compiled models: kernels in place of operators.

While a program runs, each call of a model from outside is noted: a copy of the model with shapes and no values, what
the call was given, and which events were its own. When it has ended, or is asked for a report, PyTorch's compiler is
asked about these copies, on GPUs that are not the program's: nothing that the program has or does is touched.
"""

import contextlib
import copy
import io
import logging
import math
import weakref
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, takewhile
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from simgpu.clock.events import Event, Kernel, Log, Step, Wait
from simgpu.clock.evidence import Evidence
from simgpu.clock.player import play
from simgpu.device import enabling, state
from simgpu.device.compiled import Compiled, CompiledKernel, GraphBreak, GraphPass, compiled
from simgpu.device.state import World
from simgpu.device.timelines import Timeline
from simgpu.forecasts.whatif import Basis
from simgpu.ground import inductor
from simgpu.ground.nodes import in_backward
from simgpu.ground.replacements import Replacements
from simgpu.reports import events, observer

__all__ = ["CompiledStep", "ModelCalls"]

_SMALL = 2**14  # elements
_MOST = 8  # different calls that are asked about
_ROOM_BYTES = 2**60  # of GPUs without values
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_OPTIMIZED = "OptimizedModule"  # the class of what torch.compile returns for a model


@dataclass(frozen=True)
class CompiledStep:
    """What a step would take with its models compiled by `torch.compile`, or in `error` why that is not known.

    `eager_time` is the time of the step as it is; times are in seconds. `kernels` and `graphs` are those of a step's
    calls, in the mean; `breaks` are the graph breaks with their lines, each once. `remarks` say what stays uncompiled,
    and is priced as ever.
    """

    step_time: float | None
    eager_time: float
    graphs: float = 0.0
    kernels: float = 0.0
    breaks: tuple[GraphBreak, ...] = ()
    evidence: Evidence | None = None
    error: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def gain(self) -> float | None:
        """How many times faster a step would be."""
        return self.eager_time / self.step_time if self.step_time else None


@dataclass
class _Call:
    """A call of a model: its copy, what it was given, and the numbers of its operations.

    Those of the forward pass are from `first` to before `last`; the backward pass begins with `backward`, -1: there is
    none.
    """

    model: nn.Module
    given: tuple[tuple[Any, ...], dict[str, Any]]
    key: str
    gradients: bool
    autocast: torch.dtype | None
    first: int
    last: int = -1
    backward: int = -1


@dataclass
class ModelCalls:
    """Notes the calls of models from outside, as long as `log` records; `error` says why that is not possible."""

    log: Log
    error: str = ""
    _depth: int = 0
    _calls: list[_Call] = field(default_factory=list)
    _copies: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = field(default_factory=weakref.WeakKeyDictionary)
    _found: dict[str, Compiled] = field(default_factory=dict)

    def on_forward(self, event: events.Forward) -> None:
        model = event.module
        self._depth += 1
        if self._depth > 1 or self.error or state.world.clock.log is not self.log or in_backward():
            return
        if next(iter(model.parameters()), None) is None:
            return
        if type(model).__name__ == _OPTIMIZED:
            self.error = "the program compiles its model already"
            return
        try:
            inner = model.module if isinstance(model, _PARALLEL) else model
            self._calls.append(self._call(inner, event.args, event.kwargs))
        except Exception as error:  # of a program's own classes, which may not be copied
            self.error = f"{type(model).__name__} cannot be copied: {_first_line(error)}"

    def _call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        copies, modes = self._copies.setdefault(model, {}), str([one.training for one in model.modules()])
        if modes not in copies:
            copies[modes] = copy.deepcopy(model, {id(one): _shape(one) for one in _tensors(model)})
        autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        how = torch.is_grad_enabled(), autocast
        key = str((id(copies[modes]), tree_map(_like, (args, kwargs)), how))
        return _Call(copies[modes], tree_map(_shape, (args, kwargs)), key, *how, first=self.log.number)

    def on_forward_end(self, event: events.ForwardEnd) -> None:
        self._depth -= 1
        call = self._calls[-1] if self._calls else None
        if self._depth or call is None or call.last >= 0 or in_backward():
            return
        call.last = self.log.number
        for output in tree_leaves(event.result):
            if isinstance(output, torch.Tensor) and output.requires_grad:
                observer.on_gradient(output, lambda gradient: self._begins(call))

    def _begins(self, call: _Call) -> None:
        """The backward pass comes to a call."""
        if call.backward < 0 and state.world.clock.log is self.log:
            call.backward = self.log.number

    def ask(self) -> None:
        """Ask PyTorch's compiler about the calls; `error` says why it has no answer."""
        different = {call.key: call for call in self._calls if call.last > call.first}
        if not self.error and not different:
            self.error = "no model was called"
        if len(different) > _MOST:
            self.error = f"models are called in {len(different)} different ways, which are more than {_MOST}"
        for key, call in different.items():
            if not self.error and key not in self._found:
                try:
                    self._found[key] = _compiled(call)
                except Exception as error:  # of the program's code, or of PyTorch's compiler
                    self.error = f"{type(call.model).__name__}: {_first_line(error)}"
        failed = [found.error for found in self._found.values() if found.error]
        if failed:
            self.error = failed[0]

    def step(self, basis: Basis, eager_s: float) -> CompiledStep:
        """Return what a step would take that takes `eager_s` as it is, in the mean of the recorded ones."""
        self.ask()
        error = self.error if basis.used == 1 else "the program has several GPUs"
        if error:
            return CompiledStep(None, eager_s, error=error)
        numbers = [event.number for event in basis.events if isinstance(event, Kernel)]
        calls = [call for call in self._calls if call.first < call.last <= max(numbers, default=-1) + 1]
        events = _with_kernels(basis.events, calls, self._found)
        timeline = Timeline.of(play(events, basis.machine, basis.gpus), basis.first, basis.last)
        compiled_calls = [self._found[call.key] for call in calls]
        breaks = tuple(dict.fromkeys(one for known in compiled_calls for one in known.breaks))
        graphs, kernels = (
            sum(len(getattr(one, name)) for one in compiled_calls) / basis.last for name in ("graphs", "kernels")
        )
        step_s = timeline.total_ns / (basis.last - basis.first) / 1e9
        remarks = tuple(dict.fromkeys(one.remark for one in compiled_calls if one.remark))
        return CompiledStep(step_s, eager_s, graphs, kernels, breaks, timeline.evidence, remarks=remarks)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _like(value: Any) -> Any:
    """Return what kernels depend on, of something that a call was given."""
    if isinstance(value, torch.Tensor):
        return str((tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad))
    return value if isinstance(value, int | float | bool | str | None) else type(value).__name__


# ---- copies without values ----------------------------------------------------------------------------------------
def _shape(value: Any) -> Any:
    """Return a tensor on `meta`, which remembers its device, for a tensor; anything else as it is."""
    return _made(value, torch.device("meta"), value.device) if isinstance(value, torch.Tensor) else value


def _made(tensor: torch.Tensor, device: torch.device, of: torch.device) -> torch.Tensor:
    with torch.no_grad():
        made = torch.empty_strided(tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device=device)
        if made.numel() <= _SMALL:  # which is computed with, so that numbers must be possible indices
            made.zero_()
    made = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
    made.simgpu_device = of  # pyright: ignore[reportAttributeAccessIssue]
    return made.requires_grad_(tensor.requires_grad)


def _placed(value: Any) -> Any:
    device = getattr(value, "simgpu_device", None)
    return _made(value, device, device) if isinstance(device, torch.device) else value


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield all tensors that modules have, registered or not."""
    for module in model.modules():
        yield from (one for one in tree_leaves(list(vars(module).values())) if isinstance(one, torch.Tensor))


# ---- what is asked of PyTorch's compiler --------------------------------------------------------------------------
def _compiled(call: _Call) -> Compiled:
    """Return what `torch.compile` makes of a call, on simulated GPUs that are not the program's."""
    formats = torch.autocast("cuda", call.autocast or torch.float16, enabled=call.autocast is not None)
    with _elsewhere(), _silent(), inductor.afresh(), torch.set_grad_enabled(call.gradients), formats:
        args, kwargs = tree_map(_placed, call.given)
        model = copy.deepcopy(call.model, {id(one): _placed(one) for one in _tensors(call.model)})
        return compiled(model, *args, **kwargs)


@contextlib.contextmanager
def _silent() -> Generator[None]:
    """Inside, what the program prints and PyTorch logs is not shown, and random numbers are those of before."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with torch.random.fork_rng(devices=()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _elsewhere() -> Generator[None]:
    """Inside, the simulated GPUs are others: nobody watches them, they have room, and compute no values."""
    put, here = Replacements(), state.world
    other = World(len(here.memory.gpus), here.clock.machine, _ROOM_BYTES)
    other.devices, other.only_shapes = here.devices, True
    on = (
        contextlib.nullcontext()
        if enabling.enabled()
        else enabling.enable(len(here.memory.gpus), here.clock.machine.gpu.name)
    )
    try:
        with on:  # the program, or its `with simgpu.cuda()`, may have ended
            other.chosen = state.world.chosen
            put.put(state, world=other)
            try:
                yield
            finally:
                put.undo()
    finally:
        state.world = here


# ---- events -------------------------------------------------------------------------------------------------------
_Launched = tuple[CompiledKernel | Kernel, tuple[tuple[str, int], ...]]  # with what the host does before it


def _with_kernels(events: Sequence[Event], calls: Sequence[_Call], compiled: dict[str, Compiled]) -> list[Event]:
    """Return events in which compiled kernels stand for those of calls."""
    news: dict[float, list[Kernel]] = {}  # by the number of a kernel of the program: what stands for it
    begins = sorted(call.backward for call in calls)
    for call in calls:
        found = compiled[call.key]
        news |= _instead(_of_forward(events, call), _by_graph(found.forward))
        if call.backward >= 0:
            end = next((number for number in begins if number > call.backward), math.inf)
            news |= _instead(_of_backward(events, call.backward, end), _by_graph(found.backward))
    changed: list[Event] = []
    for event in events:
        changed += news.get(event.number, [event]) if isinstance(event, Kernel) else [event]
    return changed


def _by_graph(order: Sequence[GraphPass | Kernel]) -> list[list[_Launched]]:
    """Return what is launched for each graph of a call, and for what runs uncompiled before the next one."""
    parts: list[list[_Launched]] = [[]]
    for one in order:
        if isinstance(one, GraphPass):
            parts.append([(kernel, () if index else one.calls()) for index, kernel in enumerate(one.kernels)])
        else:
            parts[-1].append((one, one.calls))
    return parts if parts[0] else parts[1:]


def _of_forward(events: Sequence[Event], call: _Call) -> list[Event]:
    """Return the kernels of the forward pass of a call, and the host's waits."""
    inside = [event for event in events if isinstance(event, Kernel) and call.first <= event.number < call.last]
    return _with_waits(events, inside)


def _of_backward(events: Sequence[Event], first: float, end: float) -> list[Event]:
    """Return the kernels of a backward pass from the operation `first` to before `end`, and the host's waits."""
    rest = dropwhile(lambda event: not isinstance(event, Kernel) or event.number < first, events)
    inside = takewhile(lambda event: not _is_after_backward(event, end), rest)
    return _with_waits(events, [event for event in inside if isinstance(event, Kernel)])


def _is_after_backward(event: Event, end: float) -> bool:
    if isinstance(event, Kernel):
        return event.number >= end or event.phase not in ("backward", "recomputation")
    return isinstance(event, Step)


def _with_waits(events: Sequence[Event], kernels: list[Kernel]) -> list[Event]:
    """Return kernels with the waits of the host between them."""
    if not kernels:
        return []
    numbers, first, last = {one.number for one in kernels}, kernels[0].number, kernels[-1].number
    return [
        event
        for event in events
        if (isinstance(event, Kernel) and event.number in numbers)
        or (isinstance(event, Wait) and first <= event.after < last)
    ]


def _instead(old: Sequence[Event], graphs: Sequence[Sequence[_Launched]]) -> dict[float, list[Kernel]]:
    """Return what stands for each of the `old` kernels, by its number: the kernels of graphs, or nothing.

    One graph after the other stands for the kernels between two waits of the host, those that are left for the last.
    """
    parts: list[list[Kernel]] = [[]]
    for event in old:
        if isinstance(event, Kernel):
            parts[-1].append(event)
        elif parts[-1]:
            parts.append([])
    parts = [part for part in parts if part]
    news: dict[float, list[Kernel]] = {event.number: [] for part in parts for event in part}
    for index, part in enumerate(parts):
        chosen = graphs[index : index + 1] if index < len(parts) - 1 else graphs[index:]
        news[part[-1].number] = _as_events([one for graph in chosen for one in graph], part[-1])
    return news


def _as_events(kernels: Sequence[_Launched], last: Kernel) -> list[Kernel]:
    """Return the events of compiled kernels; the last of them has the number of the last that they stand for."""
    numbers = [last.number - 1 + (index + 1) / len(kernels) for index in range(len(kernels))]
    return [
        replace(last, number=number, name=one.name, cost=one.cost, calls=calls)
        for number, (one, calls) in zip(numbers, kernels, strict=True)
    ]
