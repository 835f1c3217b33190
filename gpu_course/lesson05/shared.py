"""Helpers that several exercises of lesson 05 share."""

from typing import Any

import torch

from gpu_course.checks import Case

# of a batch of float32 images, and a model all of whose parameters are trained, in the mode that its caller chose
DATA = "scalar empty huge tiny not_finite bool complex default_type evaluation frozen all_frozen unchanged second_call"


def a_loss(case: Case, got: Any, expected: torch.Tensor, rtol: float = 1e-4) -> None:
    """Fail unless `got` is this loss, a detached tensor."""
    why = "to read it, the host waits for the device at every step; return the tensor"
    case.instead(isinstance(got, int | float), "returns a Python number", why, got=got)
    holds = isinstance(got, torch.Tensor) and got.requires_grad
    why = "whoever keeps the loss then keeps all that its backward pass needs: return loss.detach()"
    case.instead(holds, "returns a loss that still holds its graph", why)
    case.equal(got, expected, rtol=rtol, why="it is the mean loss of the batch before the step")
