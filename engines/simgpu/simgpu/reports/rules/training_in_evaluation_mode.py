"""Dropout is off, and batch norm learns nothing."""

from simgpu.reports import events
from simgpu.reports.rule import Rule


class TrainingInEvaluationMode(Rule, about="result"):
    text = (
        "The model is trained in evaluation mode, in which no dropout drops and no batch norm learns. Call "
        "`model.train()` before."
    )
    cure = "`model.train()` before the training loop"

    def on_judged(self, event: events.Judged) -> None:
        call = event.call
        if event.trained and call.trains and call.random is False and not call.training:
            self.note(call.line)
