"""Predictions of shape (N, 1) and targets of shape (N,) become N × N differences."""

from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.rule import Rule


class LossOfAllPairs(Rule, about="result", often="each step"):
    text = (
        "Shapes (N, 1) and (N,) broadcast to (N, N): every prediction is compared with every target. Give both the "
        "same shape, as by `.squeeze(1)`."
    )
    cure = "`.squeeze(1)`"

    def begin(self) -> None:
        self._samples = 0  # that the last model got

    def on_called(self, event: events.Called) -> None:
        self._samples = event.call.samples

    def on_difference(self, event: events.Difference) -> None:
        one, other = event.first, event.second
        result, target = (one, other) if one.requires_grad else (other, one)
        rows = self._samples
        if graph_of(result) is None or target.requires_grad or rows < 2:
            return
        if {tuple(result.shape), tuple(target.shape)} == {(rows, 1), (rows,)}:
            self.note()
