"""What do the checks of lesson 07 hand to an answer? Blocks, batches and steps that note what happens to them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from course_utils.exercises._budgets import Floor

__all__ = ["Chain", "Named", "Probe", "Tries"]


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
        self.sizes.append(size)
        rows = torch.ones(size, 256, device=self.device)
        doubled = rows * 2
        return (rows + doubled).sum()

    def __repr__(self) -> str:
        return "step"
