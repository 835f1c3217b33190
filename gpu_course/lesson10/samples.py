"""The small models, batches and comparisons that the cells of lesson 10 use on every rank."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

from ranklaunch import preload, rank_device

__all__ = [
    "NormedMLP", "close", "difference", "learned", "mlp_batch", "mlp_weights", "my_part", "sent_bytes", "shared_mlps",
    "train_step", "whole",
]  # fmt: skip
preload(__name__)  # the ranks of nearly every cell use it
preload("torch.distributed.optim", "torch.distributed.pipelining")  # half a second each, once instead of on each rank


def learned(stage: nn.Module) -> list[torch.Tensor]:
    """Return each parameter of `stage`, followed by its gradient, on the CPU."""
    return [tensor.detach().cpu() for p in stage.parameters() for tensor in (p, p.grad)]


def close(found: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Return whether two lists of tensors are equal up to rounding; lists may stand in lists, one for each stage.

    A small sum of large terms is rounded as they are, so what may differ follows the largest number of a tensor.
    """
    pairs = zip(_flat(found), _flat(expected), strict=True)
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-6 + 1e-5 * _largest(other)) for one, other in pairs)


def _largest(tensor: torch.Tensor) -> float:
    return tensor.abs().max().item()


def _flat(tensors: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors of nested lists, in order."""
    return [one for item in tensors for one in ([item] if isinstance(item, torch.Tensor) else _flat(item))]


def difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Return the largest difference between the numbers of two state dicts."""
    return max((one[name].cpu() - other[name].cpu()).abs().max().item() for name in other)


def my_part(batch: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return this rank's equal part of each tensor of a batch, on the rank's device."""
    return [part.chunk(dist.get_world_size())[dist.get_rank()].to(rank_device()) for part in batch]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Iterable[torch.Tensor]) -> None:
    """Train one step of a classifier on (x, y)."""
    x, y = batch
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def sent_bytes(counts: Any, n: int) -> float:
    """Return how many bytes one of `n` ranks sends for the collectives in `counts` (lesson 09, table of collectives).

    `counts.collective_bytes` has the bytes that the rank hands over: of all_gather its own part, else the whole.
    """
    share = {"all_reduce": 2 * (n - 1) / n, "reduce_scatter": (n - 1) / n, "all_gather": n - 1}
    return sum(share[name] * size for name, size in counts.collective_bytes.items())


def mlp_weights(hidden: int, width: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights `up` (hidden, width) and `down` (width, hidden) of an MLP, the same on every rank."""
    torch.manual_seed(0)
    return torch.randn(hidden, width) / width**0.5, torch.randn(width, hidden) / hidden**0.5


def mlp_batch(step: int) -> torch.Tensor:
    """Return the batch of a step, the same on every rank: (4 texts, 8 tokens, width 32)."""
    return torch.randn(4, 8, 32, generator=torch.Generator().manual_seed(step))


class NormedMLP(nn.Module):
    """The second half of a Transformer block: a norm, two linear layers, and the addition to the residual stream."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor in the shape of `x`: (batch, tokens, width)."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


def whole(model: nn.Module) -> list[torch.Tensor]:
    """Return each parameter of `model` and its gradient, gathered from all ranks, on the CPU."""
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # over two dimensions it takes two gathers
    tensors = [tensor for p in model.parameters() for tensor in (p, p.grad)]
    gathered = [tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return [tensor.detach().cpu() for tensor in gathered]


def shared_mlps(way: str, layers: int, width: int) -> nn.Module:
    """Return `layers` blocks `NormedMLP`, shared over all ranks by `way`: "data", "ZeRO 3" or "tensor"."""
    model = nn.Sequential(*(NormedMLP(width) for _ in range(layers)))
    if way == "data":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    if way == "ZeRO 3":
        for layer in [*model, model]:
            fully_shard(layer, mesh=mesh)
        return model
    for layer in model:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model
