"""A loss that squashes its scores gets the numbers of a sigmoid."""

from simgpu.reports import events
from simgpu.reports.rule import Rule, made_by


class SigmoidBeforeLoss(Rule, about="result"):
    text = (
        "This loss gets the numbers of a sigmoid and squashes them once more, so the model learns slowly. Give it the "
        "scores, without sigmoid."
    )
    cure = "give the loss the scores"

    def on_loss(self, event: events.Loss) -> None:
        if event.name != "nll_loss" and made_by(event.scores).startswith("SigmoidBackward"):
            self.note()
