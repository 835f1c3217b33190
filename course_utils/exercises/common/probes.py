"""What do the checks of lesson 07 hand to an answer? Blocks, batches and steps that note what happens to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from course_utils.exercises.common.budgets import Floor

__all__ = ["Chain", "Named", "Probe", "Tries", "left_changed", "state_of"]


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return what a model is beside its numbers: settings such as `training`, hooks, requires_grad, the device."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            place = f"{name}.{key}".lstrip(".")
            if isinstance(value, bool | int | float | str):
                found[place] = value
            elif "hooks" in key and isinstance(value, dict):
                found[place] = len(value)
            elif key == "forward":
                found[place] = "replaced"
    for name, parameter in model.named_parameters():
        hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
        found[f"{name}.hooks"] = sum(map(len, filter(None, hooks)))
        found |= {f"{name}.requires_grad": parameter.requires_grad, f"{name}.device": str(parameter.device)}
        found[f"{name}.dtype"] = str(parameter.dtype)
    return found


def left_changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return in words the first thing in which two results of `state_of` differ, or nothing."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return f"{names[0]} is {after.get(names[0])}, was {before.get(names[0])}" if names else ""


class Chain(nn.Module):
    """One matrix product and `length` sines: keeps its input and theirs, and has the same FLOPs for every length."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.linear, self.length = nn.Linear(width, width), length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        for _ in range(self.length):
            x = torch.sin(x)
        return x

    def __repr__(self) -> str:
        return f"block({self.length})"


class Named(nn.Sequential):
    """A model that is shown by one word."""

    def __repr__(self) -> str:
        return "model"


class Probe:
    """Batches that note how many bytes are alive whenever the next one is asked for."""

    def __init__(self, floor: Floor, batches: list) -> None:
        self.floor, self.batches, self.seen = floor, batches, []

    def __iter__(self) -> Iterator:
        for batch in self.batches:
            self.seen.append(self.floor.used_bytes)
            yield batch
        self.seen.append(self.floor.used_bytes)

    def grown_bytes(self) -> int:
        """Return by how much memory grew with each batch, from the third request on; 0 for fewer."""
        return (self.seen[-1] - self.seen[2]) // (len(self.seen) - 3) if len(self.seen) > 3 else 0

    def __repr__(self) -> str:
        return f"<{len(self.batches)} batches>"


class Tries:
    """A training step that takes 3 KiB for each row, and the sizes with which it was called."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.sizes = device, []

    def step(self, size: int) -> torch.Tensor:
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"size must be a whole number, not {size!r}")
        self.sizes.append(size)
        rows = torch.ones(size, 256, device=self.device)
        doubled = rows * 2
        return (rows + doubled).sum()

    def __repr__(self) -> str:
        return "step"
