"""The exercise “Ranks that wait”."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import PROGRAM
from gpu_course.common.ranks import check_call, describe, on_ranks
from gpu_course.lesson11 import stuck as cases
from gpu_course.lesson11.stuck import SETS, linear


@exercise(
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


train_together.exempt(
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
        known=nprocs == 2,
        compiler=True,
        why="a rank that leaves a step out calls its collectives later than the others, or never: all "
        "ranks must leave out the same steps",
    )
    describe(case, called, nprocs)
    expected = [_one_process(*map(batches, range(nprocs))) for batches in SETS]
    for rank, seen in enumerate(ranks):
        for done, weights, (taken, right) in zip(seen["calls"], seen["weights"], expected, strict=True):
            check_call(case, done, rank)
            case.equal(done.value, taken, why=f"on rank {rank}: so many steps have a finite loss on all ranks")
            case.equal(weights, right, rtol=1e-4, why=f"the weights of rank {rank}")
        case.fail_if(seen["swallows"], "swallows errors", "another error no longer reaches the caller")
