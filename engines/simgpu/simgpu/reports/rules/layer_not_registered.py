"""A list or dict of Python hides layers, and the optimizer does not get them."""

import weakref

import torch
from torch import nn

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule

_LOOKED_AT = 3  # steps


class LayerNotRegistered(Rule, about="result", often="twice", explains=("optimizer-of-other-parameters",)):
    text = (
        "This layer gets gradients, but it is no part of its model, and no optimizer has its parameters: a list or a "
        "dict of Python hides it. Keep such layers in an `nn.ModuleList`, an `nn.ModuleDict` or an attribute."
    )
    cure = "`nn.ModuleList`, `nn.ModuleDict`"

    def begin(self) -> None:
        self._parts: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[nn.Module]] = weakref.WeakKeyDictionary()
        self._strangers: dict[int, tuple[weakref.ref[nn.Parameter], str]] = {}  # parameters that their model lacks

    def on_registered(self, event: events.Registered) -> None:
        self._parts.clear()

    def on_forward(self, event: events.Forward) -> None:
        module, model = event.module, self.program.running[0]
        if self.program.step >= _LOOKED_AT or model is module or not module._parameters or not torch.is_grad_enabled():
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
