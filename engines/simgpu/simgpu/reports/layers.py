"""Which layers of a model take no part in its training: never called, or unknown to the model that calls them?"""

import sys
import weakref
from collections.abc import Callable
from types import FrameType

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.ground import places

_LOOKED_AT = 3  # steps that a model gets to call its layers
_BETWEEN = ("torch.nn.modules.module", "simgpu.reports.habits", __name__)  # what registers a layer for the reader


class LayerWatch:
    """Watches which layers are made, called and trained; `note(code, line)` notes a habit."""

    def __init__(
        self, note: Callable[[str, str], None], trained: WeakIdKeyDictionary, tells: Callable[[nn.Module], bool]
    ) -> None:
        self._note, self._trained, self._tells_modes_apart = note, trained, tells
        self._step = 0
        self._idle: dict[tuple[str, str], None] = {}  # lines and names of layers that no step of their model has called
        self._used: set[tuple[str, str]] = set()  # those of which a layer was called
        self._holders = WeakIdKeyDictionary()  # lists of idle ones, by each layer and parameter that is in them
        self._looks = {_LOOKED_AT}  # the numbers of steps after which layers are looked for that nothing has called
        self._made: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[nn.Module], str, str]] = (
            weakref.WeakKeyDictionary()
        )  # layers: whose they are, their names there, and the lines that made them
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._parts: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[nn.Module]] = weakref.WeakKeyDictionary()
        self._strangers: dict[int, tuple[weakref.ref[nn.Parameter], str]] = {}  # parameters that their model lacks
        self._reached = WeakIdKeyDictionary()  # parameters that have got a gradient
        self._waiting: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[weakref.ref[nn.Parameter]]] = (
            weakref.WeakKeyDictionary()
        )  # those that have not, by their optimizer
        self.drops_by_function = False  # a layer may only be asked for its rate then

    def registered(self, owner: nn.Module, name: str, part: object) -> None:
        """A module got a part: keep in mind the reader's line that has made it one."""
        self._parts.clear()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
            frame = frame.f_back
        if frame is None or not isinstance(part, nn.Module):
            return
        code = frame.f_code
        if places.is_readers(code.co_filename, code.co_name):
            self._looks.add(self._step + _LOOKED_AT)
            self._made[part] = weakref.ref(owner), name, places.named(code.co_filename, frame.f_lineno)

    def before_forward(self, module: nn.Module, model: nn.Module | None) -> None:
        """A module begins, called by `model`, or from outside of any."""
        self._called.add(module)
        self._mark_used(module)
        if self._step >= _LOOKED_AT or model is None or not module._parameters or not torch.is_grad_enabled():
            return
        if model not in self._parts:
            self._parts[model] = weakref.WeakSet(model.modules())
        if module not in self._parts[model]:
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad:
                    self._strangers[id(parameter)] = weakref.ref(parameter), places.place()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step begins: see which parameters have gradients, and which of them nobody trains."""
        waiting = self._waiting.get(optimizer)
        if waiting is None:
            waiting = [weakref.ref(one) for group in optimizer.param_groups for one in group["params"]]
            self._looks.add(self._step + _LOOKED_AT)
        self._waiting[optimizer] = left = list[weakref.ref[nn.Parameter]]()
        for reference in waiting:
            parameter = reference()
            if parameter is not None and parameter.grad is None:
                left.append(reference)
            elif parameter is not None:
                self._reached[parameter] = True
                self._mark_used(parameter)
        for reference, line in self._strangers.values():
            parameter = reference()
            if parameter is not None and parameter.grad is not None and parameter not in self._trained:
                self._note("layer-not-registered", line)

    def end_step(self) -> None:
        """A step of the program has ended: after the first ones of a model, find layers that none has called."""
        self._step += 1
        if self._step not in self._looks:
            return
        self._looks.discard(self._step)
        unreached = {id(one()) for waiting in self._waiting.values() for one in waiting}
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

    def never_called(self) -> list[str]:
        """Return the lines that made layers which nothing has called or used, in models that are trained."""
        return list(dict.fromkeys(line for line, _ in self._idle))

    def _mark_used(self, inner: nn.Module | torch.Tensor) -> None:
        """Something calls a layer, or has given its parameter a gradient: it and those around it are not idle."""
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
            return False  # nobody trains it
        if not own and (self.drops_by_function or not self._tells_modes_apart(part)):
            return False
        return any(one in self._reached for one in owner.parameters())

    def _is_reached(self, part: nn.Module) -> bool:
        """Return whether something has called a layer or one inside of it, or given it a gradient."""
        called = any(one in self._called for one in part.modules())
        return called or any(one in self._reached for one in part.parameters())
