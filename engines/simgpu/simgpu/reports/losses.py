"""Which habits lie in a loss: shapes that do not fit, a number that no model has made?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from simgpu.device.tensor import SimTensor
from simgpu.ground.replacements import Replacements
from simgpu.reports.calls import watched


class LossWatch:
    """Watches differences and the beginnings of backward passes; `note(code)` notes a habit of the line here."""

    def __init__(self, put: Replacements, note: Callable[[str], None]) -> None:
        self._note = note
        self.samples = 0  # that the last model got
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
            put.put(nn.functional, **{name: watched(getattr(nn.functional, name), self._on_difference)})
        for name in ("__sub__", "__rsub__", "sub"):
            put.put(SimTensor, **{name: watched(getattr(SimTensor, name), self._on_difference)})

    def _on_difference(self, one: Any, other: Any, *args: Any, **kwargs: Any) -> None:
        """A difference is taken: of results (N, 1) and wanted numbers (N,) that has N rows and N columns."""
        if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
            return
        result, wanted = (one, other) if one.requires_grad else (other, one)
        rows = self.samples
        if result.grad_fn is None or wanted.requires_grad or rows < 2:
            return
        if {tuple(result.shape), tuple(wanted.shape)} == {(rows, 1), (rows,)}:
            self._note("loss-of-all-pairs")

    def on_backward(self, tensors: Any) -> None:
        """`torch.autograd.backward` begins at these tensors."""
        if isinstance(tensors, torch.Tensor) and tensors.is_leaf and tensors.numel() == 1:
            is_weight = isinstance(tensors, nn.Parameter)
            if tensors.requires_grad and not is_weight:
                self._note("backward-without-model")
