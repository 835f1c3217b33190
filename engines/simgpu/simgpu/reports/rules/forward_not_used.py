"""A forward pass records a graph that nothing uses."""

from simgpu.reports import events
from simgpu.reports.rule import Rule


class ForwardNotUsed(Rule, about="time", often="seldom"):
    text = (
        "This forward pass records a graph, and no backward pass uses it. Use the result that you have, or write "
        "`with torch.no_grad():` around it."
    )
    cure = "use the result that you have, or `torch.no_grad()`"

    def on_judged(self, event: events.Judged) -> None:
        call = event.call
        if event.trained and call.recorded and not call.used and call.training and not call.early:
            self.note(self.program.own_line(call))
