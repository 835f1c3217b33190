"""Do ranks that share a layer compute what one would, what does each hold, and which mesh suits a cluster?"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_utils import counting
from gpu_course.checks import Case, edit, lesson, whole_numbers
from gpu_course.common.left_out import RANKS
from gpu_course.common.ranks import check_call, describe, on_ranks
from gpu_course.lesson10 import plans

__all__ = ["choose_meshes", "rank_bytes", "split_attention"]

exercise = lesson("10")


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
    title="Split attention by heads",
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


split_attention.leaves_out(
    RANKS,
    "scalar empty single permuted sliced huge tiny not_finite zero tied formats",
    "default_type numbers second_call random_state two_ranks four_ranks uneven",
)
split_attention.leaves_out(
    "the text says that there are two whole layers",
    "evaluation frozen all_frozen shared old_gradients two_groups double_model scalar_parameter",
)
split_attention.leaves_out("a mesh with a name of its own shows that it is used", "part")


@split_attention.checks
def _(case: Case) -> None:
    n = 3
    ranks = on_ranks(
        case,
        attended,
        nprocs=n,
        called="split_attention(x, qkv, out, heads)",
        known=split_attention.mistakes,
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
        case.instead(not of_v.any(), f"the result is right, but rank {rank} does not compute its own heads",
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
        case.instead(when, f"the result is right, but {name}", why)


split_attention.alternative(
    "one product for q, k and v, which is faster; the view says how the rows lie",
    edit("""
        -    weights, biases = qkv.weight.chunk(3), qkv.bias.chunk(3)  # of q, of k, of v
        -    mine = [F.linear(x, w.chunk(n)[rank], b.chunk(n)[rank]) for w, b in zip(weights, biases, strict=True)]
        +    whole = qkv.weight, qkv.bias
        +    weight, bias = (tensor.unflatten(0, (3, n, -1))[:, rank].flatten(0, 1) for tensor in whole)
        +    mine = F.linear(x, weight, bias).chunk(3, dim=-1)
    """),
)


# ---- what a rank holds


@exercise(
    title="Memory of a rank",
    where="any machine: only numbers",
    minutes=8,
    difficulty=2,
    hints=(
        "First count the parameters of a rank before any sharding. Which two of the three sizes of the mesh cut them?",
        "Each takes 2, 2 and 12 bytes. Which of these does stage 1 divide by data, which stage 2, which stage 3? Data "
        "ranks have different batches, so they share no activations.",
        "With 1F1B, the first rank holds as many micro-batches as the pipeline has ranks, for each of its own layers. "
        "In stage 3, one layer is gathered while it computes, at 2 bytes a number: what tensor ranks leave of it, "
        "undivided by data.",
    ),
)
def rank_bytes(
    layers: int, parameters: int, split: int, whole: int, data: int, tensor: int, pipeline: int, stage: int
) -> dict[str, float]:
    """Return the bytes of each owner on a rank of the first pipeline stage."""
    mine = layers // pipeline
    held = mine * parameters / tensor  # numbers that a rank has before they are sharded
    gathered = parameters / tensor if stage == 3 else 0  # one layer, while it computes
    kept = split / tensor + whole  # of a layer and micro-batch
    return {
        "parameters": 2 * (held / (data if stage >= 3 else 1) + gathered),
        "gradients": 2 * held / (data if stage >= 2 else 1),
        "optimizer": 12 * held / (data if stage >= 1 else 1),
        "activations": mine * kept * pipeline,  # as many micro-batches as ranks
    }


_MODEL = {"layers": 24, "parameters": 1200, "split": 600, "whole": 200}
_MESHES = [  # data, tensor, pipeline, stage
    (1, 1, 1, 0), (8, 1, 1, 0), (8, 1, 1, 1), (8, 1, 1, 2), (8, 1, 1, 3), (1, 4, 1, 0), (1, 1, 3, 0), (4, 2, 1, 3),
    (2, 4, 3, 1), (2, 2, 3, 3), (1, 4, 1, 3), (7, 9, 1, 2),
]  # fmt: skip


def rank_of(layers: int, parameters: int, split: int, whole: int, data: int, tensor: int, pipeline: int, stage: int):
    """Count one layer after the other, what is there of it for each owner."""
    nbytes = dict.fromkeys(("parameters", "gradients", "optimizer", "activations"), 0.0)
    for _ in range(layers // pipeline):
        for owner, bytes_each, least in (("parameters", 2, 3), ("gradients", 2, 2), ("optimizer", 12, 1)):
            shards = tensor * data if stage >= least else tensor
            nbytes[owner] += bytes_each * parameters / shards
        for _ in range(pipeline):
            nbytes["activations"] += split / tensor + whole
    nbytes["parameters"] += 2 * parameters / tensor * (stage == 3)
    return nbytes


rank_bytes.leaves_out("counts are small numbers above 0", "number_negative number_large limit")


@rank_bytes.checks
def _(case: Case) -> None:
    for mesh in _MESHES:
        sizes = dict(zip(("data", "tensor", "pipeline", "stage"), mesh, strict=True))
        got, right = case.call(**_MODEL, **sizes), rank_of(**_MODEL, **sizes)
        same = isinstance(got, dict) and got.keys() == right.keys()  # in any order
        for owner in right if same else ():
            number = got[owner] if isinstance(got[owner], str) else float(got[owner])
            case.equal(number, float(right[owner]), why=f"these are the bytes of the {owner}")
        if not same:
            case.equal(got, right)


rank_bytes.alternative(
    "the owners in one table: shorter, and the stages stand beside each other",
    edit("""
        -    return {
        -        "parameters": 2 * (held / (data if stage >= 3 else 1) + gathered),
        -        "gradients": 2 * held / (data if stage >= 2 else 1),
        -        "optimizer": 12 * held / (data if stage >= 1 else 1),
        -        "activations": mine * kept * pipeline,  # as many micro-batches as ranks
        -    }
        +    table = {"parameters": (2, 3), "gradients": (2, 2), "optimizer": (12, 1)}
        +    found = {owner: each * held / data ** (stage >= least) for owner, (each, least) in table.items()}
        +    found["parameters"] += 2 * gathered
        +    return found | {"activations": mine * kept * pipeline}
    """),
)


# ---- which mesh


TASKS = {
    "large": {"model": "GPT-3 175B", "cluster": "DGX H100, InfiniBand", "gpus": 64, "sequences": 1024},
    "slow": {"model": "Cerebras-GPT 2.7B", "cluster": "4 × RTX 4090, Ethernet", "gpus": 64, "sequences": 1024},
    "wide": {"model": "Cerebras-GPT 13B", "cluster": "DGX H100, InfiniBand", "gpus": 512, "sequences": 512},
}


@exercise(
    title="Choose for three clusters",
    where="any machine: formulas",
    minutes=8,
    difficulty=2,
    hints=(
        "Try meshes with parallel_plan.plan, or in the explorer, and look at `fits` and at `times`. Where do the slow "
        "ones spend their time?",
        "Ask for each task: does one GPU hold the model? If not, which group can stay inside a machine? If it does, "
        "what would have to travel over the slow link for each micro-batch?",
        "Have no more tensor ranks than a machine has GPUs. A pipeline wants many more micro-batches than ranks, so "
        "few data ranks. Sharding the parameters sends them for each micro-batch; sharding the optimizer alone sends "
        "no more than plain data parallelism.",
    ),
)
def choose_meshes() -> dict[str, tuple[int, int, int]]:
    """Return (tensor, pipeline, stage) for each of the three tasks."""
    return {
        "large": (4, 16, 0),  # no GPU holds it: tensors inside a machine, then deep, with 1,024 micro-batches
        "slow": (1, 1, 1),  # the model fits: only gradients travel, and the optimizer is shared
        "wide": (1, 1, 3),  # fast links, small batches: all is gathered behind the computation
    }


_MOST_PLANS = 30  # in one call; a search tries hundreds


choose_meshes.leaves_out("it takes no argument", "other_input")


@choose_meshes.checks
def _(case: Case) -> None:
    counted = mock.Mock(wraps=plans.Rank)  # each plan makes one
    with mock.patch.object(plans, "Rank", counted):
        got = case.call()
    case.instead(
        counted.call_count > _MOST_PLANS,
        f"tries {counted.call_count} meshes: that is a search, not a choice",
        "the next cluster is in no list: reason which mesh suits, and try a few",
        got=got,
    )
    case.instead(
        not isinstance(got, dict) or {*got} != {*TASKS},
        "does not answer the three tasks",
        'return {"large": (tensor, pipeline, stage), "slow": …, "wide": …}',
        got=got,
    )
    for name, task in TASKS.items():
        _check_mesh(case, name, task, got.get(name) if isinstance(got, dict) else None)


def _check_mesh(case: Case, name: str, task: dict[str, Any], mesh: Any) -> None:
    """Check one choice by the explorer's formulas."""
    case.about(f"choose_meshes() for {name}: {mesh}", case.device)
    case.instead(
        not whole_numbers(mesh, 3) or min(mesh) < 0 or mesh[2] > 3 or 0 in mesh[:2],
        "is no (tensor, pipeline, stage)",
        "a tuple of three whole numbers, the last from 0 to 3",
    )
    try:
        tensor, pipeline, stage = map(int, mesh)
        made = plans.plan(**task, tensor=tensor, pipeline=pipeline, stage=stage)
    except (ValueError, TypeError) as error:
        case.fail(str(error))
    best, links = plans.plans(**task)[0], plans.CLUSTERS[task["cluster"]]
    slow, gap = made.step_s > 1.25 * best.step_s, made.step_s / best.step_s
    held = f"{made.memory_bytes / 2**30:.0f} GiB on the fullest rank, and a GPU has {made.room_bytes / 2**30:.0f}"
    case.instead(not made.fits, "does not fit", held)
    most = max(list(made.times)[1:], key=made.times.__getitem__)  # beside computation
    case.instead(
        slow and most == "tensor messages" and made.tensor > links.per_machine,
        "tensor parallel across machines",
        f"{made.times['tensor messages']:.1f} s of a step of {made.step_s:.1f} s: four all-reduces a layer, "
        f"which nothing hides, leave the machine of {links.per_machine} GPUs",
    )
    case.instead(
        slow and most == "data messages" and made.stage > 1,
        "waits for what is sharded",
        f"gradients{' and parameters' * (made.stage == 3)} are sent for every "
        f"micro-batch: {made.times['data messages']:.1f} s of a step of {made.step_s:.1f} s over this link",
    )
    case.instead(
        slow and most == "pipeline" and made.pipeline - 1 > 0.2 * made.micro_batches,
        "a pipeline with few micro-batches",
        f"{made.micro_batches} micro-batches for {made.pipeline} ranks: "
        f"{made.times['pipeline']:.2f} s of a step of {made.step_s:.2f} s are waiting and messages",
    )
    case.instead(
        slow,
        f"takes {gap:.2f} times the best, and 1.25 is the limit",
        f"of {made.step_s:.2f} s most beside computation: {most}, {made.times[most]:.2f} s",
    )


choose_meshes.alternative(
    "a tensor group as large as a machine, and a shorter pipeline: 1.16 times as long, with fewer activations",
    edit("""
-        "large": (4, 16, 0),  # no GPU holds it: tensors inside a machine, then deep, with 1,024 micro-batches
+        "large": (8, 4, 1),  # no GPU holds it: tensors in a whole machine, then four stages, the optimizer shared
    """),
)
