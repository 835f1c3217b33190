"""Small gradients become zero in float16."""

import torch
from torch import nn

from simgpu.ground import device_kind
from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.rule import Rule

_PRODUCTS = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)  # what autocast computes in 16 bits


class Float16WithoutScaler(Rule, about="result", often="twice"):
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
            trains = torch.is_grad_enabled() and any(
                one.requires_grad for one in event.module.parameters(recurse=False)
            )
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
