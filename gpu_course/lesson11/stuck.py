"""Which repair lets ranks that hang train together again? The last exercise of lesson 11."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, edit, lesson
from gpu_course.common.ranks import check_call, describe, on_ranks
from gpu_course.lesson11 import stuck as cases

exercise = lesson("11")
# fmt: off


@exercise(title="Ranks that wait", where="real ranks on the CPU", minutes=10, difficulty=2, hints=(
    "Rank 0 meets a loss that is not finite in its second batch, rank 1 does not. Which collectives does each call?",
    "All ranks must leave out the same steps: so each must know whether any rank's loss is not finite.",
    "One number a rank, 1.0 where its loss is not finite, and one all_reduce of it with ReduceOp.MAX before the "
    "decision: then all decide the same.",
))
def train_together(model: nn.Module, batches: list) -> int:
    """Take a step on each batch with all ranks, none where any rank's loss is not finite; return the steps taken."""
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
    "        bad = (~torch.isfinite(loss)).float()\n        dist.all_reduce(bad, op=dist.ReduceOp.MAX)  # all ranks "
    "decide the same\n        if bad:\n", "        if not torch.isfinite(loss):\n")


def linear() -> nn.Module:
    """Return a model for 3 numbers, always the same."""
    torch.manual_seed(14)
    return nn.Linear(3, 1)


def shares(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the six batches of a rank, (4, 3) and (4, 1). Bad are the second and last of rank 0, the fourth of 1."""
    x = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(15 + rank))
    y = x.sum(dim=2, keepdim=True)
    if rank == 0:
        x[1, 2, 0], y[5, 0, 0] = torch.nan, torch.inf
    else:
        x[3, 1, 0] = torch.nan
    return list(zip(x, y, strict=True))


def run(call: Callable) -> dict[str, Any]:
    """Return, on a rank, what the answer returned and the weights that it left, and what it does with an error."""
    model = linear()
    done = call(model, shares(dist.get_rank()), modifies=True)
    try:
        call(linear(), [(torch.ones(2, 5), torch.ones(2, 1))], modifies=True)
        swallows = True
    except RuntimeError:
        swallows = False
    return {"call": done, "weights": dict(model.state_dict()), "swallows": swallows}


@train_together.checks
def _(case: Case) -> None:
    called = "train_together(model, batches)"
    ranks = on_ranks(case, cases.run, nprocs=2, called=called, known=train_together.mistakes, compiler=True,
                     why="a rank that leaves a step out calls its collectives later than the other, or never: all must "
                     "leave out the same steps")
    describe(case, called, 2)
    right, taken = linear(), 0
    for batches in zip(shares(0), shares(1), strict=True):
        losses = [F.mse_loss(right(x), y) for x, y in batches]
        if all(loss.isfinite() for loss in losses):
            gradients = torch.autograd.grad(sum(losses) / 2, list(right.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(right.parameters(), gradients, strict=True):
                    parameter -= 0.1 * gradient
            taken += 1
    for rank, found in enumerate(ranks):
        check_call(case, found["call"], rank)
        case.equal(found["call"].value, taken, why=f"so many steps have no bad loss on any rank; rank {rank}")
        case.equal(found["weights"], dict(right.state_dict()), rtol=1e-3, why=f"the weights of rank {rank}")
        case.instead(found["swallows"], "swallows errors", "another error no longer reaches the caller")


_BAD, _MAX = "(~torch.isfinite(loss)).float()", "dist.all_reduce(bad, op=dist.ReduceOp.MAX)"
_GRADIENTS = "            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)"
train_together.edits(
    ("takes every step", "what is not finite gets into the weights of all ranks, and never out",
     "if bad:", "if False:"),
    ("lets rank 0 decide", "the loss of another rank may be bad, too",
     _MAX, "dist.broadcast(bad, src=0)"),
    ("takes a step with the ranks that are well", "no step was asked for where any loss is bad",
     _MAX, "pass", "if bad:", "if False:", "loss.backward()", "loss.backward()\n        if bad: model.zero_grad("
     "set_to_none=False)"),
    ("trains each rank alone", "the ranks are to average their gradients", _GRADIENTS, "            pass"),
    ("adds the gradients", "the mean over the ranks was taken before", "op=dist.ReduceOp.AVG", "op=dist.ReduceOp.SUM"),
    ("leaves out steps only where all ranks are bad", "one bad loss is enough: ReduceOp.MAX", "ReduceOp.MAX",
     "ReduceOp.MIN"),
    ("counts every batch", "the steps taken were asked for", "return taken", "return len(batches)"),
)


train_together.alternative(
    "the sum of the losses is not finite where one is not: one number for both, no maximum",
    edit("bad = (~torch.isfinite(loss)).float()", "total = loss.detach().clone()",
         f"{_MAX}  # all ranks decide the same", "dist.all_reduce(total)", "if bad:", "if not total.isfinite():"))
