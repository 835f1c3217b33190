"""Which repair lets ranks that hang train together again? The last exercise of lesson 11."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, edit, lesson
from gpu_course.common.left_out import PROGRAM
from gpu_course.common.rank_calls import Imported
from gpu_course.common.ranks import check_call, describe, on_ranks
from gpu_course.lesson11 import stuck as cases
from ranklaunch import launch

exercise = lesson("11")


@exercise(
    title="Ranks that wait",
    where="real ranks on the CPU",
    minutes=6,
    difficulty=2,
    hints=(
        "In the second batch, the loss of rank 0 is not finite, and that of rank 1 is. Which collectives does each "
        "rank call?",
        "All ranks must leave out the same steps. So each rank must know whether any loss is not finite.",
        "Let each rank make one number: 1.0 if its loss is not finite, else 0.0. After an all_reduce with "
        "ReduceOp.MAX all ranks have the same number, and decide the same.",
    ),
)
def train_together(model: nn.Module, batches: list) -> int:
    """Take the steps in which all losses are finite; return how many were taken."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taken = 0
    for x, y in batches:
        loss = F.mse_loss(model(x), y)
        bad = (~torch.isfinite(loss)).float()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)  # all ranks decide the same
        if bad:
            continue  # a damaged sample
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        taken += 1
    return taken


train_together.broken(
    """
    -        bad = (~torch.isfinite(loss)).float()
    -        dist.all_reduce(bad, op=dist.ReduceOp.MAX)  # all ranks decide the same
    -        if bad:
    +        if not torch.isfinite(loss):
    """
)


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


_SETS = shares, _others, _large


def run(call: Callable) -> dict[str, Any]:
    """Return, on a rank, what the answer returned and the weights that it left, and what it does with an error."""
    models = [linear() for _ in _SETS]
    done = [call(model, batches(dist.get_rank()), modifies=True) for model, batches in zip(models, _SETS, strict=True)]
    try:
        call(linear(), [(torch.ones(2, 5), torch.ones(2, 1))], modifies=True)
        swallows = True
    except RuntimeError:
        swallows = False
    return {"calls": done, "weights": [dict(model.state_dict()) for model in models], "swallows": swallows}


def _one_process(*shares_of_ranks: list) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the steps to be taken and the weights to be had, computed in one process."""
    right, taken = linear(), 0
    for batches in zip(*shares_of_ranks, strict=True):
        losses = [F.mse_loss(right(x), y) for x, y in batches]
        if all(loss.isfinite() for loss in losses):
            gradients = torch.autograd.grad(sum(losses) / len(losses), list(right.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(right.parameters(), gradients, strict=True):
                    parameter -= 0.1 * gradient
            taken += 1
    return taken, dict(right.state_dict())


train_together.leaves_out(
    PROGRAM,
    "scalar empty permuted sliced tiny zero formats",
    "default_type models no_entries order second_call unchanged random_state four_ranks part uneven",
)


@train_together.checks
def _(case: Case) -> None:
    for nprocs in (2, 3):
        _check_ranks(case, nprocs)


def _check_ranks(case: Case, nprocs: int) -> None:
    """Check all of it on so many ranks."""
    called = "train_together(model, batches)"
    ranks = on_ranks(
        case,
        cases.run,
        nprocs=nprocs,
        called=called,
        known=train_together.mistakes if nprocs == 2 else (),
        compiler=True,
        why="a rank that leaves a step out calls its collectives later than the others, or never: all "
        "ranks must leave out the same steps",
    )
    describe(case, called, nprocs)
    expected = [_one_process(*map(batches, range(nprocs))) for batches in _SETS]
    for rank, seen in enumerate(ranks):
        for done, weights, (taken, right) in zip(seen["calls"], seen["weights"], expected, strict=True):
            check_call(case, done, rank)
            case.equal(done.value, taken, why=f"on rank {rank}: so many steps have a finite loss on all ranks")
            case.equal(weights, right, rtol=1e-3, why=f"the weights of rank {rank}")
        case.instead(seen["swallows"], "swallows errors", "another error no longer reaches the caller")


@train_together.mistake(
    "looks at the gradients, not at the loss", "a loss can be inf although its gradients are finite"
)
def _(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taken = 0
    for x, y in batches:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        if all(parameter.grad.isfinite().all() for parameter in model.parameters()):
            optimizer.step()
            taken += 1
    return taken


train_together.alternative(
    "if one loss is not finite, their sum is not: so the sum alone is enough",
    edit("""
        -        bad = (~torch.isfinite(loss)).float()
        -        dist.all_reduce(bad, op=dist.ReduceOp.MAX)  # all ranks decide the same
        -        if bad:
        +        total = loss.detach().clone()
        +        dist.all_reduce(total)
        +        if not total.isfinite():
    """),
)
