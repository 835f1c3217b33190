"""The backward pass runs under autocast."""

import torch

from simgpu.reports import events
from simgpu.reports.rule import Rule


class BackwardUnderAutocast(Rule, about="result"):
    text = (
        "The backward pass runs under autocast, which PyTorch advises against. End the `with torch.autocast(…)` block "
        "after the loss."
    )
    cure = "end the `with` block after the loss"

    def on_backward_end(self, event: events.BackwardEnd) -> None:
        if torch._C._is_any_autocast_enabled():
            self.note()
