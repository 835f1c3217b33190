"""Ranks that train together, or hang: their data, and one process to compare with."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpu_course.common.rank_calls import Imported
from ranklaunch import launch


def linear() -> nn.Module:
    """Return a model for 3 numbers, always the same."""
    torch.manual_seed(14)
    return nn.Linear(3, 1)


def shares(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the six batches of a rank, (4, 3) and (4, 1). Bad are the second and last of rank 0, the fourth of 1.

    The loss of the last one is inf, since a square is larger than float32 can hold; its gradients are finite.
    """
    x = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(15 + rank))
    y = x.sum(dim=2, keepdim=True)
    if rank == 0:
        x[1, 2, 0], y[5, 0, 0] = torch.nan, 1e25
    else:
        x[3, 1, 0] = torch.nan
    return list(zip(x, y, strict=True))


def _others(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return five other batches of a rank: bad are the first of both, the third of rank 0, the second of rank 1."""
    x = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(25 + rank))
    y = x.sum(dim=2, keepdim=True)
    x[0, 0, 0], y[2 - rank, 3, 0] = torch.nan, torch.inf
    return list(zip(x, y, strict=True))


def on_two_ranks(program: Callable) -> list[Any]:
    """Return what `program(model, batches)` returns on each of two ranks, where `batches` are the rank's `shares`.

    Raises `RankError`, which says where each rank was, when one of them has not returned after two seconds.
    """
    ready = Imported("torch._dynamo")  # an optimizer imports it, which may take as long as that
    return launch(_on_this_rank, ready, program, nprocs=2, devices=["cpu", "cpu"], timeout_s=2)


def _on_this_rank(ready: object, program: Callable) -> Any:
    """Call the program on a rank, once what it needs is imported."""
    return program(linear(), shares(dist.get_rank()))


def _large(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return two batches of a rank, both good: the second of rank 1 has a loss of 10^32, which float32 can hold."""
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(35 + rank))
    y = x.sum(dim=2, keepdim=True)
    y[1, 0, 0] += rank * 2e16
    return list(zip(x, y, strict=True))


SETS = shares, _others, _large


def run(call: Callable) -> dict[str, Any]:
    """Return, on a rank, what the answer returned and the weights that it left, and what it does with an error."""
    models = [linear() for _ in SETS]
    done = [call(model, given(dist.get_rank()), modifies="training") for model, given in zip(models, SETS, strict=True)]
    try:
        call(linear(), [(torch.ones(2, 5), torch.ones(2, 1))], modifies="training")
        swallows = True
    except RuntimeError:
        swallows = False
    return {"calls": done, "weights": [dict(model.state_dict()) for model in models], "swallows": swallows}
