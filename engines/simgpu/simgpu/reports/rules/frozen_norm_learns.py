"""Batch norm whose weights are frozen still learns its mean and variance."""

import weakref
from dataclasses import dataclass

import torch
from torch import nn

from simgpu.device.tensor import values_of
from simgpu.reports import events
from simgpu.reports.rule import Rule


@dataclass
class _Frozen:
    """The line that has called the model of a frozen layer in training mode, and the layer's weights then."""

    line: str
    weight: torch.Tensor


class FrozenNormLearns(Rule, about="result", often="each step"):
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
