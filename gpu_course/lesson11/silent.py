"""A model whose body somebody has trained."""

import torch
from torch import nn

from gpu_course.lesson11.watched import Layers


class Features(nn.Module):
    """A body of one layer, which somebody has trained, and a head for three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 16), nn.Tanh()), nn.Linear(16, 3)

    __repr__ = Layers.__repr__

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))
