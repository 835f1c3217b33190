"""`ignore_index` hides all targets of a batch, so the loss is NaN."""

import torch

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.reports import events
from simgpu.reports.rule import LOOKED_AT, Rule


class TargetsAllIgnored(Rule, about="result"):
    text = (
        "`ignore_index` hides all targets of this batch: nothing is learned from it, and a mean over no target is NaN. "
        "Look at what the targets are, and at what is to be ignored."
    )
    cure = "check the targets"

    def on_loss(self, event: events.Loss) -> None:
        targets = values_of(event.target) if isinstance(event.target, torch.Tensor) else None
        if state.world.only_shapes or type(targets) is not torch.Tensor or self.program.step >= LOOKED_AT:
            return
        if not targets.is_floating_point() and targets.numel() and bool((targets == event.ignored).all()):
            self.note()
