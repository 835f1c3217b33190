"""Rules on the clipping and the scaling of gradients."""

import math

import torch
from torch import nn

from simgpu.ground import device_kind
from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.rule import Rule


class GradientsClippedTooLate(Rule, about="result", often="each step", explains=("gradients-clipped-while-scaled",)):
    """Gradients are clipped after a step has used them, or before they are computed."""

    text = (
        "This limits nothing: it comes after the optimizer step, before any gradient exists, or gets an iterator of "
        "parameters that has ended. Clip between `backward()` and `step()`, with `list(model.parameters())`."
    )
    cure = "clip between `backward()` and `step()`, with a list of parameters"

    def begin(self) -> None:
        self._given: object = None  # to the last call, where it is an iterator: a list would keep parameters

    def on_clip(self, event: events.Clip) -> None:
        if event.given is self._given and not event.parameters and hasattr(event.given, "__next__"):
            self.note()
        self._given = event.given if hasattr(event.given, "__next__") else None
        used = [] if is_measured(event) else self.program.used(event.parameters)
        if used and (all(used) or all(one.grad is None for one in event.parameters)):
            self.note()


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

    def on_clip(self, event: events.Clip) -> None:
        if self.program.scaled and not is_measured(event):
            self.note()


class GradientsStillScaled(Rule, about="result", often="each step", explains=("gradients-clipped-while-scaled",)):
    """An optimizer's step takes gradients that a scaler has multiplied."""

    text = (
        "This step takes gradients that are still multiplied by the scaler's factor, by default 65,536 at first. Write "
        "`scaler.step(optimizer)` and `scaler.update()` in its place."
    )
    cure = "`scaler.step(optimizer)`, `scaler.update()`"

    def on_update(self, event: events.Update) -> None:
        if self.program.scaled and not self.program.unscales:
            self.note()


_PRODUCTS = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)  # what autocast computes in 16 bits


class Float16WithoutScaler(Rule, about="result", often="twice"):
    """Small gradients become zero in float16."""

    text = (
        "The forward pass computes in float16, in which small gradients become zero. Multiply the loss by a "
        "`torch.amp.GradScaler`, or use bfloat16."
    )
    cure = "a `torch.amp.GradScaler`, or bfloat16"

    def begin(self) -> None:
        self._has_scaler = self._in_half = False

    def on_forward(self, event: events.Forward) -> None:
        kind = device_kind.kind if device_kind.kind in ("mps", "xpu") else "cuda"
        if isinstance(event.module, _PRODUCTS) and torch.is_autocast_enabled(kind):
            own = event.module.parameters(recurse=False)
            trains = torch.is_grad_enabled() and any(one.requires_grad for one in own)
            self._in_half |= trains and torch.get_autocast_dtype(kind) is torch.float16

    def on_scaler_call(self, event: events.ScalerCall) -> None:
        self._has_scaler |= event.method == "__init__" and event.enabled

    def on_backward(self, event: events.Backward) -> None:
        node = graph_of(event.roots[0]) if len(event.roots) == 1 else None
        by_hand = node is not None and node.name().startswith("MulBackward")  # a scale of the program's own
        if self._in_half and not self._has_scaler and not by_hand:
            self.note()

    def on_updated(self, event: events.Updated) -> None:
        self._in_half = False
