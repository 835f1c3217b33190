"""The forward pass copies a tensor of the CPU to the GPU."""

from torch.utils._pytree import tree_leaves

from simgpu.reports import events, observer
from simgpu.reports.rule import Rule


class HostTensorInForward(Rule, about="time", often="each step"):
    text = (
        "The forward pass copies a tensor of the CPU to the GPU. Make it there (`device=x.device`), or keep it as a "
        "buffer of the model."
    )
    cure = "make it with `device=x.device`, or keep it as a buffer"

    def on_copied(self, event: events.Copied) -> None:
        source = event.source
        if not self.program.running or not source.dim():
            return
        is_input = any(source is one or source._base is one for one in tree_leaves(self.program.inputs))
        if not is_input and observer.asker() != "torch.nn.utils.rnn":  # which needs lengths of a batch on the CPU
            self.note()


BAD = [
    ("        x = x\n", "        x = x + torch.arange(16.0).to(x.device)\n", "torch.arange"),
    ("        x = x\n", "        x = x + torch.zeros(1, 16).cuda()\n", "torch.zeros"),
    (
        "self.drop = nn.Dropout(0.1)\n", "self.drop = nn.Dropout(0.1); self.scale = torch.ones(16)\n",
        "        x = x\n", "        x = x * self.scale.to(x.device)\n", "self.scale.to",
    ),
]  # fmt: skip
GOOD = {
    "batches moved by the model": (
        "x, y = x.cuda(), y.cuda()", "y = y.cuda()", "        x = x\n", "        x = x.to(self.first.weight.device)\n",
    ),
}  # fmt: skip
