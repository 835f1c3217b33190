"""An evaluation records a graph."""

from simgpu.reports import events
from simgpu.reports.rule import Rule


class EvaluationWithGradients(Rule, about="time"):
    text = (
        "This evaluation records a graph that no backward pass uses, which takes time and memory. Write "
        "`with torch.inference_mode():` around it."
    )
    cure = "`torch.inference_mode()` around it"

    def on_judged(self, event: events.Judged) -> None:
        call = event.call
        if event.trained and call.recorded and not call.used and not call.training and not call.early:
            self.note(self.program.own_line(call))

    def on_inferred(self, event: events.Inferred) -> None:
        if event.call.recorded and not event.call.training:
            self.note(event.call.line)
