"""The forward pass copies a tensor of the CPU to the GPU."""

from torch.utils._pytree import tree_leaves

from simgpu.reports import events, observer
from simgpu.reports.rule import Rule


class HostTensorInForward(Rule, about="time", often="each step"):
    text = (
        "The forward pass copies a tensor of the CPU to the GPU. Make it there, as `torch.zeros(…, device=x.device)` "
        "does and `torch.tensor` does not, or keep it as a buffer of the model."
    )
    cure = "make it with `device=x.device`, or keep it as a buffer"

    def on_copied(self, event: events.Copied) -> None:
        source = event.source
        if not self.program.running or not source.dim():
            return
        is_input = any(source is one or source._base is one for one in tree_leaves(self.program.inputs))
        if not is_input and observer.asker() != "torch.nn.utils.rnn":  # which needs lengths of a batch on the CPU
            self.note()
