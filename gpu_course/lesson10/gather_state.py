"""The exercise “Gather an optimizer's state”."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from gpu_course.checks import Case, edit, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.ranks import check_call, describe, on_ranks

# ---- gather an optimizer's state ------------------------------------------------------------------------------------


@exercise(
    title="Gather an optimizer's state",
    where="real ranks on the CPU",
    minutes=8,
    difficulty=2,
    hints=(
        "Two of the three entries have one number for each number of the shard. The third has one for all of them.",
        "Gather exp_avg and exp_avg_sq in the order of the ranks. Which numbers of the result belong to no parameter?",
        "dist.all_gather fills a list of tensors, one for each rank, each as long as a shard. torch.cat joins them, "
        "and a slice up to total leaves out the padding. Every rank has counted the same steps.",
    ),
)
def gather_state(state: dict[str, torch.Tensor], total: int) -> dict[str, torch.Tensor]:
    """Return AdamW's state of all `total` numbers; `state` is this rank's part."""
    gathered = {"step": state["step"].clone()}  # all ranks have counted the same steps
    for name in ("exp_avg", "exp_avg_sq"):
        parts = [torch.empty_like(state[name]) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, state[name])
        gathered[name] = torch.cat(parts)[:total]  # behind it is padding
    return gathered


_TOTALS = (6, 7, 1)  # on 3 ranks: no padding, some, and ranks that hold nothing else


def _whole_state(total: int) -> dict[str, torch.Tensor]:
    """Return the state that one process would hold: zeros in it, also at its end, are moments like any other."""
    index = torch.arange(total)
    moments = (index + 1 / 3) * (index != 1) * (index != 6)  # with thirds, 16 bits on the way are seen
    return {"step": torch.tensor(5.0 + total), "exp_avg": moments, "exp_avg_sq": moments.square() / 8}


def _states(call: Callable) -> list[Any]:
    """Call the answer with this rank's shard of each state, padded with zeros."""
    rank, n, states = dist.get_rank(), dist.get_world_size(), []
    for total in _TOTALS:
        padded = {
            name: F.pad(value, (0, -total % n)) if value.dim() else value for name, value in _whole_state(total).items()
        }
        states.append(
            call(
                {name: value.chunk(n)[rank].clone() if value.dim() else value for name, value in padded.items()}, total
            )
        )
    return states


gather_state.exempt(
    RANKS,
    "empty permuted sliced huge tiny not_finite negative formats",
    "default_type numbers lists second_call random_state four_ranks uneven",
)
gather_state.exempt("a mesh with a name of its own shows that it is used", "part")


@gather_state.checks
def _(case: Case) -> None:
    for nprocs in (3, 2):
        _check_states(case, nprocs)


def _check_states(case: Case, nprocs: int) -> None:
    """Check all of it on so many ranks."""
    ranks = on_ranks(
        case,
        _states,
        nprocs=nprocs,
        called="gather_state(state, total)",
        known=gather_state.mistakes if nprocs == 3 else (),
        why="every rank gathers the same entries in the same order, in tensors of the size of a shard",
    )
    for index, total in enumerate(_TOTALS):
        describe(case, f"gather_state(state, {total})", nprocs)
        for rank, calls in enumerate(ranks):
            call = calls[index]
            check_call(case, call, rank)
            case.equal(call.value, _whole_state(total), what=f"rank {rank}'s result")
            sent, shard = call.counts.collective_bytes.copy(), 4 * -(-total // nprocs)
            sent["broadcast"] //= nprocs  # counted on each rank, given by one
            case.fail_if(
                sent.total() > 2 * shard + 8,
                f"the result is right, but rank {rank} gives {sent.total()} bytes, and its shards have {2 * shard}",
                "each rank gives its own part: all_gather, and no pickles",
            )


gather_state.alternative(
    "writes into one tensor, so that no copy is made by torch.cat",
    edit("""
        -        parts = [torch.empty_like(state[name]) for _ in range(dist.get_world_size())]
        -        dist.all_gather(parts, state[name])
        -        gathered[name] = torch.cat(parts)[:total]  # behind it is padding
        +        whole = state[name].new_empty(dist.get_world_size() * len(state[name]))
        +        dist.all_gather(list(whole.chunk(dist.get_world_size())), state[name])
        +        gathered[name] = whole[:total]  # behind it is padding
    """),
)
