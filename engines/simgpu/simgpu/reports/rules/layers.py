"""Rules on layers that do not learn."""

import inspect
import linecache
import re
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.device.tensor import values_of
from simgpu.ground import places
from simgpu.ground.nodes import graph_nodes, graph_of, is_leaf
from simgpu.reports import events, observer
from simgpu.reports.program import alive, tells_modes_apart
from simgpu.reports.rule import LOOKED_AT, Outcome, Rule

_MOST_NODES = 2000  # of a graph that a `detach()` cuts off
_DETACHED = "`detach()`, `.data` or `.tolist()` cuts off what they have made. Leave it out"
_LOST = (
    "no backward pass comes through its result. Look for `.item()`, `argmax` or `torch.tensor` between it and the loss"
)
_NO_GRAD = "every call of their layer is without gradients. Call it outside of `torch.no_grad()`"


@dataclass
class _Called:
    """The line that has called a layer, whether no model has called it, and whether any call was recorded."""

    line: str
    whole: bool
    recorded: bool


class LayerGetsNoGradient(Rule, about="result", explains=("forward-not-used", "evaluation-with-gradients")):
    """An optimizer has a layer that never gets a gradient: something cuts its result off from the loss."""

    text = (
        "No loss reaches {numbers:,} numbers of this optimizer, so its steps have not changed them: {why}, or give the "
        "optimizer only what is to learn."
    )
    cure = "leave out the `detach()` or the `no_grad()` between the layer and the loss"

    def begin(self) -> None:
        self._called: weakref.WeakKeyDictionary[nn.Module, _Called] = weakref.WeakKeyDictionary()
        self._cuts = WeakIdKeyDictionary()  # by parameter: the line that cuts off what it has made
        self._without: dict[int, tuple[str, str, int]] = {}  # by parameter: the line, why, and how many numbers

    def on_forward(self, event: events.Forward) -> None:
        module, recorded = event.module, torch.is_grad_enabled()
        known = self._called.get(module)
        if module._parameters and (known is None or (recorded and not known.recorded)):
            self._called[module] = _Called(places.place(), len(self.program.running) == 1, recorded)

    def on_cut(self, event: events.Cut) -> None:
        if self.program.step < LOOKED_AT:
            for node in graph_nodes([graph_of(event.tensor)], most=_MOST_NODES):
                if is_leaf(node):
                    self._cuts.setdefault(node.variable, places.place())

    def on_update(self, event: events.Update) -> None:
        """Look for parameters without a gradient after some steps of an optimizer that trains others."""
        for parameter in self.program.reached:
            self._without.pop(id(parameter), None)
        left = [one for one in alive(self.program.waiting[event.optimizer]) if one.requires_grad]
        number, late = self.program.updates[event.optimizer], self.program.step >= LOOKED_AT
        if not (number == LOOKED_AT or (number == 2 and late)) or len(left) == len(event.parameters):
            return
        owners = {id(one): known for module, known in self._called.items() for one in module._parameters.values()}
        for one in left:
            known = owners.get(id(one))
            if known is not None and not known.recorded:
                self._without[id(one)] = known.line, _NO_GRAD, one.numel()
            elif known is not None and one in self._cuts:
                self._without[id(one)] = self._cuts[one], _DETACHED, one.numel()
            elif known is not None and known.whole:
                self._without[id(one)] = known.line, _LOST, one.numel()

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        return {line: None for line, _, _ in self._without.values() if line}

    def said(self, line: str, outcome: Outcome) -> str:
        here = [one for one in self._without.values() if one[0] == line]
        return self.text.format(numbers=sum(one[2] for one in here), why=here[0][1])


_GIVEN = 3  # steps that a model gets to call its layers


class LayerNeverCalled(Rule, about="result"):
    """Nothing calls a layer of the model, in the whole run."""

    text = "Nothing has called this layer in the whole run, so it does nothing. Call it in `forward`, or take it out."
    in_part = "Nothing has called this layer in the {steps} steps seen. If no later one does, call it or take it out."
    cure = "call it in `forward`, or take it out"

    def begin(self) -> None:
        self._whole = False  # whether the program has ended by itself
        self._idle: dict[tuple[str, str], None] = {}  # lines and names of layers that no step of their model has called
        self._used: set[tuple[str, str]] = set()  # those that have called a layer
        self._holders = WeakIdKeyDictionary()  # lists of idle ones, by each layer and parameter that is in them
        self._looks = {_GIVEN}  # the numbers of steps after which layers are looked for that nothing has called
        self._made: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[nn.Module], str, str]] = (
            weakref.WeakKeyDictionary()
        )  # layers: whose they are, their names there, and the lines that made them
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._reached = WeakIdKeyDictionary()  # parameters that have got a gradient

    def on_registered(self, event: events.Registered) -> None:
        """Keep in mind the reader's line that has made a layer part of a module."""
        frame = observer.caller("torch.nn.modules.module")
        if frame is None or not isinstance(event.part, nn.Module):
            return
        code = frame.f_code
        if places.is_readers(code.co_filename, code.co_name):
            self._looks.add(self.program.step + _GIVEN)
            line = places.named(code.co_filename, frame.f_lineno)
            self._made[event.part] = weakref.ref(event.owner), event.name, line

    def on_forward(self, event: events.Forward) -> None:
        self._called.add(event.module)
        if self._idle:
            self._mark_used(event.module)

    def on_update(self, event: events.Update) -> None:
        """See which parameters have gradients now that had none."""
        if self.program.updates[event.optimizer] == 1:
            self._looks.add(self.program.step + _GIVEN)
        for parameter in self.program.reached:
            self._reached[parameter] = True
            self._mark_used(parameter)

    def on_step_end(self, event: events.StepEnd) -> None:
        """After the first steps of a model, find layers that none has called."""
        if self.program.step + 1 not in self._looks:
            return
        self._looks.discard(self.program.step + 1)
        unreached = {id(one()) for waiting in self.program.waiting.values() for one in waiting}
        for part, (reference, name, line) in list(self._made.items()):
            owner = reference()
            if owner is None or owner._modules.get(name) is not part or (line, name) in self._used:
                continue
            if self._is_idle(part, owner, unreached):
                self._idle[line, name] = None
                for inner in (*part.modules(), *part.parameters()):
                    self._holders[inner] = [*(self._holders.get(inner) or ()), (line, name)]
            elif self._is_reached(part):
                self._use(line, name)

    def on_run_end(self, event: events.RunEnd) -> None:
        self._whole = event.whole

    def said(self, line: str, outcome: Outcome) -> str:
        return self.text if self._whole else self.in_part.format(steps=self.program.step)

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        """Return the lines that made layers which nothing has called or used, in models that are trained."""
        return dict.fromkeys(line for line, _ in self._idle)

    def _mark_used(self, inner: nn.Module | torch.Tensor) -> None:
        """Note a call of a layer, or a gradient of its parameter: it and those around it are not idle."""
        for line, name in self._holders.pop(inner, ()):
            self._use(line, name)

    def _use(self, line: str, name: str) -> None:
        self._used.add((line, name))
        self._idle.pop((line, name), None)

    def _is_idle(self, part: nn.Module, owner: nn.Module, unreached: set[int]) -> bool:
        """Return whether nothing has called a layer, and no function has used it.

        What uses its weights gives them gradients; one of dropout may lend its rate to a function.
        """
        if self._is_reached(part):
            return False
        own = list(part.parameters())
        if own and not any(id(one) in unreached for one in own):
            return False  # no optimizer has it
        if not own and (self.program.drops_by_function or not tells_modes_apart(part)):
            return False
        return any(one in self._reached for one in owner.parameters())

    def _is_reached(self, part: nn.Module) -> bool:
        """Return whether something has called a layer or one inside of it, or given it a gradient."""
        called = any(one in self._called for one in part.modules())
        return called or any(one in self._reached for one in part.parameters())


class LayerNotRegistered(Rule, about="result", often="twice", explains=("optimizer-of-other-parameters",)):
    """A layer or a tensor that a model uses gets gradients, but it is no part of the model, and nothing trains it."""

    text = (
        "This gets gradients, and no optimizer has it: it is no part of its model. A list or a dict of Python hides a "
        "layer, `forward` makes it anew, or a tensor is no `nn.Parameter(…)`, as one with `.to(device)` behind. Make "
        "it in `__init__`: an attribute, an `nn.ModuleList`, an `nn.Parameter`, or one in an `nn.ParameterList`."
    )
    cure = "`nn.ModuleList`, `nn.ModuleDict`, `nn.Parameter` without `.to(device)` behind it"

    def begin(self) -> None:
        self._parts: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[nn.Module]] = weakref.WeakKeyDictionary()
        self._strangers: dict[int, tuple[weakref.ref[nn.Parameter], str]] = {}  # parameters that their model lacks
        self._before = WeakIdKeyDictionary()  # by a tensor that a model keeps: its values a step ago

    def on_registered(self, event: events.Registered) -> None:
        self._parts.clear()

    def on_forward(self, event: events.Forward) -> None:
        module, model = event.module, self.program.running[0]
        if self.program.step >= LOOKED_AT or model is module or not module._parameters or not torch.is_grad_enabled():
            return
        if model not in self._parts:
            self._parts[model] = weakref.WeakSet(model.modules())
        if module not in self._parts[model]:
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad:
                    self._strangers[id(parameter)] = weakref.ref(parameter), places.place()

    def on_update(self, event: events.Update) -> None:
        for reference, line in self._strangers.values():
            parameter = reference()
            if parameter is not None and parameter.grad is not None and parameter not in self.program.trained:
                self.note(line)

    def on_all_judged(self, event: events.AllJudged) -> None:
        if self.program.step >= LOOKED_AT or not self.program.optimized or self.program.asks:
            return  # perhaps for the gradients of such a tensor, or of a part of it
        for module in {one for call in event.used if self.program.trains(call.model) for one in call.model.modules()}:
            for name, value in vars(module).items():
                if any([self._stays(one) for one in (value if isinstance(value, list | tuple) else (value,))]):
                    self.note(_line_of_attribute(module, name))

    def _stays(self, value: object) -> bool:
        """Return whether a tensor, or what `.to(device)` has made it of, has a gradient, and has not changed."""
        node = graph_of(value) if isinstance(value, torch.Tensor) and value.requires_grad else None
        while node is not None and node.name().startswith("ToCopy"):
            node = node.next_functions[0][0]
        leaf = node.variable if node is not None and is_leaf(node) else value if node is None else None
        if not isinstance(leaf, torch.Tensor) or leaf.grad is None or leaf in self.program.trained:
            return False
        values = values_of(leaf).detach()
        before, self._before[leaf] = self._before.get(leaf), values.clone()
        return before is not None and torch.equal(values, before)


def _line_of_attribute(module: nn.Module, name: str) -> str:
    """Return the program's line of a module's `__init__` that gives it an attribute, "" where there is none."""
    code, gives = inspect.unwrap(type(module).__init__).__code__, rf"\bself\.{name}\b[^=]*=[^=]"
    is_own = places.is_readers(code.co_filename, code.co_name)
    numbers = sorted({line for _, _, line in code.co_lines() if line}) if is_own else ()
    lines = (one for one in numbers if re.search(gives, linecache.getline(code.co_filename, one)))
    return next((places.named(code.co_filename, one) for one in lines), "")


@dataclass
class _Frozen:
    """The line that has called the model of a frozen layer in training mode, and the layer's weights then."""

    line: str
    weight: torch.Tensor


class FrozenNormLearns(Rule, about="result", often="each step"):
    """Batch norm whose weights are frozen still learns its mean and variance."""

    text = (
        "Batch norm with frozen weights runs in training mode here, so its mean and variance go on changing with each "
        "batch. Call `.eval()` of the frozen part after `model.train()`."
    )
    cure = "`.eval()` of the frozen part after `model.train()`"

    def begin(self) -> None:
        self._frozen: weakref.WeakKeyDictionary[nn.Module, _Frozen] = weakref.WeakKeyDictionary()
        self._running: list[nn.modules.batchnorm._BatchNorm] = []  # such layers, of the model that runs

    def on_forward(self, event: events.Forward) -> None:
        norm = event.module
        if not isinstance(norm, nn.modules.batchnorm._BatchNorm) or not norm.training or not torch.is_grad_enabled():
            return
        if norm.weight is not None and norm.running_mean is not None and not norm.weight.requires_grad:
            self._running.append(norm)

    def on_called(self, event: events.Called) -> None:
        """Note a layer that stays frozen: the weights of a teacher change by hand."""
        for norm in self._running:
            known = self._frozen.get(norm)
            if known is None:
                self._frozen[norm] = _Frozen(event.call.line, values_of(norm.weight).detach().clone())
            elif norm.weight.grad is None and torch.equal(values_of(norm.weight), known.weight):
                self.note(known.line)
        self._running.clear()
