"""The exercise “Split attention by heads”."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_utils import counting
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.ranks import check_call, describe, on_ranks


class Enter(torch.autograd.Function):
    """The lesson's: the same forward, an all-reduce of the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient := gradient.clone())
        return gradient


class Leave(torch.autograd.Function):
    """The lesson's: an all-reduce forward, the same gradient."""

    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x := x.clone())
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


enter, leave = Enter.apply, Leave.apply


@exercise(
    where="real ranks on the CPU",
    minutes=12,
    difficulty=3,
    hints=(
        "Which rows of qkv belong to a head? The first third makes q, the second k, the third v, and in each third the "
        "heads follow one another. So a rank needs rows from all three.",
        "chunk(3) cuts qkv.weight into its thirds, and chunk(n) cuts each third; do the same with the bias. "
        "F.linear(x, weight, bias) computes with a part. Of out.weight you need columns: dim=1.",
        "x goes through enter once. Each rank has heads // n heads. What the columns of out give is a part of a sum, "
        "which leave adds up. Where do you add the bias, so that it counts once and gets its whole gradient on every "
        "rank?",
    ),
)
def split_attention(x: torch.Tensor, qkv: nn.Linear, out: nn.Linear, heads: int) -> torch.Tensor:
    """Return causal attention's result; each rank computes its own heads alone."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x = enter(x)  # once: backward, one sum over the ranks
    weights, biases = qkv.weight.chunk(3), qkv.bias.chunk(3)  # of q, of k, of v
    mine = [F.linear(x, w.chunk(n)[rank], b.chunk(n)[rank]) for w, b in zip(weights, biases, strict=True)]
    q, k, v = (tensor.unflatten(-1, (heads // n, -1)).transpose(1, 2) for tensor in mine)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    part = F.linear(mixed, out.weight.chunk(n, dim=1)[rank])  # the columns that meet these heads
    return leave(part) + out.bias  # the bias once, behind the sum


def layers(n: int, index: int) -> tuple[torch.Tensor, nn.Linear, nn.Linear, int, torch.Tensor]:
    """Return x (batch, 3, width), qkv, out, heads, and the gradient of the result."""
    torch.manual_seed(5 + index)
    heads, each = n * (1 + index), 6
    width = heads * each
    x, gradient = torch.randn(2, 2 * n, 3, width).unbind(0)
    return x.requires_grad_(), nn.Linear(width, 3 * width), nn.Linear(width, width), heads, gradient


def alone(x: torch.Tensor, qkv: nn.Linear, out: nn.Linear, heads: int) -> torch.Tensor:
    """Attention head by head."""
    mixed = []
    for q, k, v in zip(*(part.chunk(heads, dim=-1) for part in qkv(x).chunk(3, dim=-1)), strict=True):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        mixed.append(scores.softmax(dim=-1) @ v)
    return out(torch.cat(mixed, dim=-1))


def _gradients(x: torch.Tensor, qkv: nn.Linear, out: nn.Linear) -> dict[str, torch.Tensor]:
    named = {"x": x, "qkv.weight": qkv.weight, "qkv.bias": qkv.bias, "out.weight": out.weight, "out.bias": out.bias}
    return {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in named.items()}


def attended(call: Callable) -> list[dict[str, Any]]:
    """Call the answer on two sets of layers and go back through what it returned."""
    results = []
    for index in range(2):
        x, qkv, out, heads, gradient = layers(dist.get_world_size(), index)
        done = call(x, qkv, out, heads)
        y = done.value
        with counting.count() as back:
            if isinstance(y, torch.Tensor) and y.requires_grad and y.shape == gradient.shape:
                y.backward(gradient)
        value = y.detach() if isinstance(y, torch.Tensor) else y  # with a graph it cannot be sent
        seen = {"call": replace(done, value=None), "value": value, "back": back.collective_bytes}
        results.append({**seen, "gradients": _gradients(x, qkv, out)})
    return results


split_attention.exempt(RANKS, "scalar empty single permuted sliced huge tiny not_finite zero tied")
split_attention.exempt(RANKS, "formats default_type numbers second_call random_state two_ranks four_ranks uneven")
split_attention.exempt(
    "the text says that there are two whole layers",
    "evaluation frozen all_frozen shared old_gradients two_groups double_model scalar_parameter",
)
split_attention.exempt("a mesh with a name of its own shows that it is used", "part")


@split_attention.checks
def _(case: Case) -> None:
    n = 3
    ranks = on_ranks(
        case,
        attended,
        nprocs=n,
        called="split_attention(x, qkv, out, heads)",
        compiler=True,
        why="all ranks must hand tensors of one size to the same collectives, in the same order",
    )
    for index in range(2):
        x, qkv, out, heads, gradient = layers(n, index)
        with counting.count() as counts:
            right = alone(x, qkv, out, heads)
        right.backward(gradient)
        describe(case, f"split_attention(x, qkv, out, heads) of {heads} heads", n)
        _check_attended(case, [calls[index] for calls in ranks], right.detach(), _gradients(x, qkv, out), counts.flops)


def _check_attended(case: Case, ranks: list[dict], right: torch.Tensor, gradients: dict, flops: int) -> None:
    """Check what each rank returned, the gradients, the bytes, and the work; `flops` is that of one process."""
    near = {"rtol": 1e-4, "atol": 1e-5}
    for rank, seen in enumerate(ranks):
        check_call(case, seen["call"], rank)
        case.equal(seen["value"], right, what=f"rank {rank}'s result", **near)
    for rank, seen in enumerate(ranks):
        _, _, of_v = (part.chunk(len(ranks))[rank] for part in seen["gradients"]["qkv.bias"].chunk(3))
        case.fail_if(not of_v.any(), f"the result is right, but rank {rank} does not compute its own heads",
                     "rank 0 has the first: a rank keeps, and saves, the weights of its own heads alone")  # fmt: skip
        for name in ("x", "out.bias"):
            why = "all ranks hold it whole, and each must get all of its gradient"
            what = f"the gradient of {name} on rank {rank}"
            case.equal(seen["gradients"][name], gradients[name], what=what, why=why, **near)
    for name in ("qkv.weight", "qkv.bias", "out.weight"):
        total = sum(seen["gradients"][name] for seen in ranks)
        what, why = f"the gradient of {name}, summed over the ranks,", "each rank has its own part of it"
        case.equal(total, gradients[name], what=what, why=why, **near)
    size, used, part = right.nbytes, max(seen["call"].counts.flops for seen in ranks), flops // len(ranks)
    forward, backward = ranks[0]["call"].counts.collective_bytes.total(), ranks[0]["back"].total()
    hands = "a rank hands {:,} bytes to collectives {}, and {:,} are enough"
    once = (
        "one all-reduce of the result forward, one of the gradient of x backward: what a rank computes of its own "
        "heads stays there"
    )
    for when, name, why in (
        (used > 1.2 * part, "a rank computes more than its own heads",
         f"{used:,} FLOPs on one rank, and {part:,} are its part: cut before you multiply"),
        (forward > size, hands.format(forward, "forward", size), once),
        (backward > size, hands.format(backward, "backward", size), once),
    ):  # fmt: skip
        case.fail_if(when, f"the result is right, but {name}", why)
