"""Gradients are clipped that a scaler has multiplied."""

from simgpu.reports import events
from simgpu.reports.rule import Rule
from simgpu.reports.rules.gradients_clipped_too_late import is_measured


class GradientsClippedWhileScaled(Rule, about="result", often="each step"):
    text = (
        "The gradients are still multiplied by the scaler's factor, so that nearly all of them are clipped. Call "
        "`scaler.unscale_(optimizer)` before this line."
    )
    cure = "`scaler.unscale_(optimizer)` before"

    def begin(self) -> None:
        self._scaled = False  # whether gradients are those of a loss that a scaler has multiplied

    def on_scaler_call(self, event: events.ScalerCall) -> None:
        self._scaled = event.method == "scale" and event.enabled

    def on_clip(self, event: events.Clip) -> None:
        if self._scaled and not is_measured(event):
            self.note()
