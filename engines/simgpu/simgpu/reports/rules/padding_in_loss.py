"""The loss counts targets that are padding for the model's embedding."""

import weakref

import torch
from torch import nn

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.reports import events
from simgpu.reports.rule import LOOKED_AT, Rule


class PaddingInLoss(Rule, about="result", often="twice"):
    text = (
        "The model's `nn.Embedding` takes one token for padding (`padding_idx`), and this loss counts targets that are "
        "this token. Give it the same number as `ignore_index`."
    )
    cure = "`ignore_index=padding_idx`"

    def begin(self) -> None:
        self._padding: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()  # by embedding: tokens

    def on_forward(self, event: events.Forward) -> None:
        if isinstance(event.module, nn.Embedding) and event.module.padding_idx is not None:
            self._padding[event.module] = event.module.num_embeddings

    def on_loss(self, event: events.Loss) -> None:
        if not self._padding or event.name == "binary_cross_entropy_with_logits" or self.program.step >= LOOKED_AT:
            return
        targets = values_of(event.target) if isinstance(event.target, torch.Tensor) else None
        if state.world.only_shapes or type(targets) is not torch.Tensor or targets.is_floating_point():
            return
        classes = event.scores.shape[1 if event.scores.dim() > 1 else 0]
        known = {one.padding_idx for one, tokens in self._padding.items() if tokens == classes}
        if known and event.ignored not in known and bool(torch.isin(targets, torch.tensor([*known])).any()):
            self.note()
