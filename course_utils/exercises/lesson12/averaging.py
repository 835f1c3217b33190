"""What do ranks prepare for the exercise of lesson 12, and what do they send back? A small module: each imports it."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def averaged(call: Callable) -> list[dict[str, Any]]:
    """Return for two models: the call of the answer, and gradients and weights before and after it."""
    found = []
    for sizes in ((2, 3), (3, 5, 2)):
        torch.manual_seed(7)
        model = nn.Sequential(*[nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])
        torch.manual_seed(100 + dist.get_rank())
        model(torch.randn(4, sizes[0])).square().sum().backward()
        before, weights = _gradients(model), [one.detach().clone() for one in model.parameters()]
        done = call(model, modifies=True)
        changed = any(not torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
        found.append({"call": done, "before": before, "after": _gradients(model), "changed": changed})
    return found


def _gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
