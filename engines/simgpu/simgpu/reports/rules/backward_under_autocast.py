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


BAD = [("loss.backward()\n", "with torch.autocast('cuda', torch.float16): loss.backward()\n", "loss.backward()")]
GOOD = {
    "in mixed precision": (
        "scores = model(x)\n", "with torch.autocast('cuda', torch.bfloat16): scores = model(x)\n",
        "F.cross_entropy(scores, y)", "F.cross_entropy(scores.float(), y)",
    ),
    "without a bias in mixed precision": (
        "nn.Linear(16, 512)", "nn.Linear(16, 512, bias=False)",
        "scores = model(x)\n", "with torch.autocast('cuda', torch.bfloat16): scores = model(x)\n",
        "F.cross_entropy(scores, y)", "F.cross_entropy(scores.float(), y)",
    ),
}  # fmt: skip
