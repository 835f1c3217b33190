"""Rules on the clipping of gradients."""

import math

import torch
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from simgpu.reports import events
from simgpu.reports.rule import Rule


class GradientsClippedTooLate(Rule, about="result", often="each step", explains=("gradients-clipped-while-scaled",)):
    """Gradients are clipped after a step has used them, or before they are computed."""

    text = (
        "Gradients are clipped after the optimizer step, or before any exist, so this limits nothing. Clip them "
        "between `backward()` and `step()`."
    )
    cure = "clip between `backward()` and `step()`"

    def begin(self) -> None:
        self._used = WeakIdKeyDictionary()  # one of each optimizer: the gradient that its last step used, its version

    def on_updated(self, event: events.Updated) -> None:
        parameters = (one for group in event.optimizer.param_groups for one in group["params"])
        parameter = next((one for one in parameters if one.grad is not None), None)
        if parameter is not None:
            self._used[parameter] = TensorWeakRef(parameter.grad), parameter.grad._version

    def on_clip(self, event: events.Clip) -> None:
        samples = [] if is_measured(event) else [one for one in event.parameters if one in self._used]
        if samples and (all(map(self._is_used, samples)) or all(one.grad is None for one in event.parameters)):
            self.note()

    def _is_used(self, parameter: torch.Tensor) -> bool:
        """Return whether a step has used the gradient that a parameter has."""
        gradient, version = self._used[parameter]
        return parameter.grad is not None and gradient() is parameter.grad and parameter.grad._version == version


def is_measured(event: events.Clip) -> bool:
    """Return whether a norm is only measured, by a limit that is infinite."""
    return any(isinstance(one, float) and math.isinf(one) for one in event.options[:1])


class GradientsClippedWhileScaled(Rule, about="result", often="each step"):
    """Gradients are clipped that a scaler has multiplied."""

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
