"""Facts of a training program that several rules need, and what they have noted of its lines."""

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.calls import Pass, Then

_T = TypeVar("_T")


@dataclass(frozen=True)
class Parts:
    """Parts of a model, which nobody here keeps alive: layers that tell the modes apart, and parameters."""

    random: list["weakref.ref[nn.Module]"]
    parameters: list["weakref.ref[nn.Parameter]"]

    @classmethod
    def of(cls, model: nn.Module) -> "Parts":
        random = [weakref.ref(one) for one in model.modules() if tells_modes_apart(one)]
        return cls(random, [weakref.ref(one) for one in model.parameters()])


class Program:
    """Facts of the program, up to date before a rule is told of the same event."""

    def __init__(self) -> None:
        self.step = 0  # the number of the step that runs, from 0
        self.notes: dict[tuple[str, str], set[int]] = defaultdict(set)  # steps in which a rule has noted a line
        self.running: list[nn.Module] = []  # modules whose calls have begun, the outermost first
        self.inputs: object = ()  # of the outermost one
        self.samples = 0  # that the last model got
        self.passes: list[Pass] = []  # calls of models since the last step, and earlier ones that may still be used
        self.trained = WeakIdKeyDictionary()  # parameters that an optimizer changes, or the program itself
        self.training_lines: set[str] = set()  # that have called models whose results backward passes came through
        self.updates: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()  # by optimizer
        self.step_lines: Counter[str] = Counter()  # lines of optimizers' steps
        self.waiting: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[nn.Parameter]]] = (
            weakref.WeakKeyDictionary()
        )  # parameters that have got no gradient yet, by their optimizer
        self.reached: list[nn.Parameter] = []  # those that have got their first one before the update that runs
        self._used = WeakIdKeyDictionary()  # one of each optimizer: the gradient that its last step used
        self.built: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # optimizers …: lines that did
        self.groups = 0  # of parameters, of all optimizers
        self.optimized = self.several = False  # whether an optimizer has begun a step, and whether several take turns
        self.closure = False  # whether an optimizer makes a step that has one
        self.stepping = False  # whether an optimizer makes a step
        self.searches = False  # whether its last step has had backward passes of its own, as of a line search
        self.hand_steps = 0
        self.graphs_used = self.asks = False  # whether any gradient was asked for; whether by `torch.autograd.grad`
        self.fills = True  # whether a backward pass leaves gradients in parameters; `torch.autograd.grad` returns them
        self.backwards = 0  # backward passes of the step
        self.backward_line = self.clear_line = ""  # of the last ones since an optimizer's step
        self.moves: Counter[str] = Counter()  # of models, by line
        self.only_batch = False  # whether a loader has given the only batch it has
        self.begun = 0  # how often a loader has begun
        self.drops_by_function = False  # a layer of dropout may only be asked for its rate then
        self.scaled = self.unscales = False  # whether a scaler has multiplied the gradients; whether one ever divides
        self.preparing: set[str] = set()  # lines that make a DistributedDataParallel, which sends the model once
        self._loaders: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()  # by iterator
        self._parts: weakref.WeakKeyDictionary[nn.Module, Parts] = weakref.WeakKeyDictionary()

    def note(self, code: str, line: str = "") -> None:
        """Keep in mind that a rule has noted a line in this step, by default the one that runs."""
        line = line or places.place()
        if line:
            self.notes[code, line].add(self.step)

    def own_line(self, call: Pass) -> str:
        """Return the innermost line of a call that has led to no training: a line may serve several callers."""
        return next((line for line in call.lines if line not in self.training_lines), call.line)

    def parts(self, model: nn.Module) -> Parts:
        if model not in self._parts:
            self._parts[model] = Parts.of(model)
        return self._parts[model]

    def trains(self, model: nn.Module) -> bool:
        """Return whether anything of a model is trained."""
        return any(parameter in self.trained for parameter in alive(self.parts(model).parameters))

    def loader(self, iterator: Any) -> Any:
        """Return the loader whose iterator this is, None where it is gone."""
        return self._loaders[iterator]() if iterator in self._loaders else None

    # ---- modules ------------------------------------------------------------------------------------------------
    def on_registered(self, event: events.Registered) -> None:
        self._parts.clear()

    def on_forward(self, event: events.Forward) -> None:
        if not self.running:
            self.inputs = event.args, event.kwargs
        self.running.append(event.module)

    def on_forward_end(self, event: events.ForwardEnd) -> None:
        if event.module in self.running:
            del self.running[self.running.index(event.module) :]
        if not self.running:
            self.inputs = ()

    def on_called(self, event: events.Called) -> None:
        self.samples = event.call.samples

    def on_moved(self, event: events.Moved) -> None:
        self.moves[places.place()] += 1

    def on_wrapped(self, event: events.Wrapped) -> None:
        self.preparing.add(places.place())

    def on_dropout(self, event: events.Dropout) -> None:
        self.drops_by_function |= self.in_own_code and event.rate > 0

    def on_attention(self, event: events.Attention) -> None:
        self.drops_by_function |= bool(event.rate)

    @property
    def in_own_code(self) -> bool:
        """Whether a module runs that is no layer of dropout: it calls a function itself."""
        return bool(self.running) and not isinstance(self.running[-1], nn.modules.dropout._DropoutNd)

    # ---- gradients and optimizers -------------------------------------------------------------------------------
    def on_backward(self, event: events.Backward) -> None:
        self.backward_line, self.clear_line = places.place(), ""
        self.backwards += 1
        self.searches |= self.stepping
        self.graphs_used = True

    def on_grad(self, event: events.Grad) -> None:
        self.graphs_used, self.asks, self.fills = True, True, False

    def on_grad_end(self, event: events.GradEnd) -> None:
        self.fills = True

    def on_clear(self, event: events.Clear) -> None:
        if self.backward_line:
            self.clear_line = places.place()

    def on_optimizer_built(self, event: events.OptimizerBuilt) -> None:
        self.built[event.optimizer] = places.place()

    def on_scheduled(self, event: events.Scheduled) -> None:
        if event.method == "__init__":
            self.built[event.scheduler] = places.place()

    def on_parameters_added(self, event: events.ParametersAdded) -> None:
        self.groups += 1
        self._train(event.parameters)

    def on_update(self, event: events.Update) -> None:
        self.step_lines[places.place()] += 1
        self.closure, self.optimized, self.groups = event.closure, True, self.groups or 1  # or a thread has built it
        self.stepping, self.searches = True, False
        waiting = self.waiting.get(event.optimizer)
        if waiting is None:
            self._train(event.parameters)
            waiting = [weakref.ref(one) for one in event.parameters]
        self.several |= event.optimizer in self.updates and [*self.updates][-1] is not event.optimizer
        self.updates[event.optimizer] = self.updates.pop(event.optimizer, 0) + 1  # now the last one
        there = list(alive(waiting))
        self.reached = [one for one in there if one.grad is not None]
        self.waiting[event.optimizer] = [weakref.ref(one) for one in there if one.grad is None]

    def on_updated(self, event: events.Updated) -> None:
        parameters = (one for group in event.optimizer.param_groups for one in group["params"])
        parameter = next((one for one in parameters if one.grad is not None), None)
        if parameter is not None:
            self._used[parameter] = Then.of(parameter.grad)

    def used(self, parameters: Iterable[torch.Tensor]) -> list[bool]:
        """Return of those parameters that stand for an optimizer whether they have the gradient of its last step."""
        return [self._used[one].is_still(one.grad) for one in parameters if one in self._used]

    def on_scaler_call(self, event: events.ScalerCall) -> None:
        self.scaled = event.method == "scale" and event.enabled
        self.unscales |= event.method in ("unscale_", "step", "get_scale")

    def on_hand_step(self, event: events.HandStep) -> None:
        self.hand_steps += 1
        self._train(event.weights)

    def _train(self, weights: Iterable[torch.Tensor]) -> None:
        self.trained.update(dict.fromkeys(weights, True))

    def end_update(self) -> None:
        """Begin anew after an optimizer's step, of which all rules have been told."""
        self.backward_line = self.clear_line = ""
        self.closure, self.stepping, self.reached = False, False, []

    def end_step(self) -> None:
        """Count a step, of whose end all rules have been told."""
        self.backwards = 0
        self.step += 1

    # ---- data ---------------------------------------------------------------------------------------------------
    def on_loader_built(self, event: events.LoaderBuilt) -> None:
        self.built[event.loader] = places.place()

    def on_loader_begun(self, event: events.LoaderBegun) -> None:
        self.begun += 1
        self._loaders[event.iterator] = weakref.ref(event.loader)

    def on_loaded(self, event: events.Loaded) -> None:
        loader = self.loader(event.iterator)
        self.only_batch = loader is not None and not has_several(loader)


def has_several(loader: Any) -> bool:
    """Return whether a loader has more than one batch; an endless one has."""
    try:
        return len(loader) > 1
    except TypeError:
        return True


def alive(references: Iterable["weakref.ref[_T]"]) -> Iterator[_T]:
    """Yield what is still alive."""
    return (one for one in (reference() for reference in references) if one is not None)


def is_set(gradient: torch.Tensor | None) -> bool:
    """Return whether there is a gradient that is not all zeros; nothing is asked of a GPU, nor of other ranks."""
    if gradient is None:
        return False
    values = values_of(gradient)
    if state.world.only_shapes or type(values) is not torch.Tensor or values.layout is not torch.strided:
        return True
    return bool(values.any())


def tells_modes_apart(layer: nn.Module) -> bool:
    """Return whether a layer does something else in training than in evaluation."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.RNNBase):
        return layer.dropout > 0 and layer.num_layers > 1
    if isinstance(layer, nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, nn.modules.batchnorm._BatchNorm)
