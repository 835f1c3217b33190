"""Dropout is on, and batch norm learns from the validation data."""

from simgpu.reports import events
from simgpu.reports.rule import Rule


class EvaluationInTrainingMode(Rule, about="result"):
    text = (
        "The model is evaluated in training mode, in which dropout drops and batch norm learns from the data. Call "
        "`model.eval()` before, and `model.train()` afterwards."
    )
    cure = "`model.eval()` before, `model.train()` after"

    def on_judged(self, event: events.Judged) -> None:
        call = event.call
        if event.trained and not call.used and not call.recorded and call.random and call.training:
            self.note(self.program.own_line(call))

    def on_inferred(self, event: events.Inferred) -> None:
        call = event.call
        if call.random and call.training and not call.recorded:
            self.note(call.line)
