"""The model inside of `DistributedDataParallel` is called, so no gradients are averaged."""

import weakref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simgpu.reports import events
from simgpu.reports.rule import Rule


class DdpBypassed(Rule, about="result", often="twice"):
    text = (
        "This calls the model inside of DistributedDataParallel, so no gradients are averaged and each rank trains a "
        "model of its own. Call the wrapper."
    )
    cure = "call the wrapper"

    def begin(self) -> None:
        self._wrapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models inside a wrapper
        self._averaged: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # of these, those whose wrapper was called

    def on_wrapped(self, event: events.Wrapped) -> None:
        self._wrapped.add(event.model)

    def on_forward(self, event: events.Forward) -> None:
        if isinstance(event.module, DistributedDataParallel) and torch.is_grad_enabled():
            self._averaged.add(event.module.module)

    def on_judged(self, event: events.Judged) -> None:
        model = event.call.model
        if event.call.used and event.trained and model in self._wrapped and model not in self._averaged:
            self.note(event.call.line)
