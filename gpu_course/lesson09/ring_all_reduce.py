"""The exercise “All-reduce from send and receive”."""

import torch
import torch.distributed as dist

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.rank_calls import Call
from gpu_course.common.ranks import check_call, describe, on_ranks
from gpu_course.lesson09 import cases


@exercise(
    where="real ranks on the CPU",
    minutes=20,
    difficulty=3,
    hints=(
        "There are two rounds of n - 1 steps. In the first, add what arrives to your own part. In the second, replace "
        "it.",
        "Keep clones of the parts in a list. In both rounds you send part (rank - step) % n and receive the one "
        "before. The lesson prints the numbers for three ranks.",
        "A step that cannot deadlock starts with isend to the right, goes on with recv from the left into a new tensor "
        "(torch.empty_like), and waits for the handle last. Only then may the parts change.",
    ),
)
def ring_all_reduce(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of `x` over all ranks, built from messages to the right."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [part.clone() for part in x.tensor_split(n)]  # the caller's x stays as it is
    for step in range(2 * (n - 1)):
        adding = step < n - 1  # the first round adds, the second hands the finished parts on
        give = (rank - step) % n  # what came in the step before
        take = (give - 1) % n  # what the left neighbour gives in this step
        arrived = torch.empty_like(parts[take])
        sent = dist.isend(parts[give], (rank + 1) % n)  # returns at once: every rank can go on to receive
        dist.recv(arrived, (rank - 1) % n)
        sent.wait()  # from here on parts[give] may change
        parts[take] = parts[take] + arrived if adding else arrived
    return torch.cat(parts)


ring_all_reduce.exempt("the text says one dimension, of which each rank has a part", "scalar empty permuted sliced")
ring_all_reduce.exempt(RANKS, "tiny not_finite zero negative tied")
ring_all_reduce.exempt(RANKS, "half bfloat16 whole bool complex default_type second_call random_state four_ranks part")
ring_all_reduce.exempt("x has one length on all ranks", "uneven")


@ring_all_reduce.checks
def _(case: Case) -> None:
    why = "the tensor that you receive into must have the size of what arrives: parts differ where n does not divide x"
    for n in (2, 3, 1):  # for one and two, and steps that are neither first nor the only ones
        ranks = on_ranks(case, cases.each, cases.ring_columns, nprocs=n, called="ring_all_reduce(x)", why=why)
        for index, group in enumerate(cases.ring_columns(n)):
            describe(case, f"ring_all_reduce(x) of {len(group[0])} elements each", n)
            for rank, calls in enumerate(ranks):
                _check_ring(case, group, calls[index], rank)


def _check_ring(case: Case, group: list[torch.Tensor], call: Call, rank: int) -> None:
    """Check what `rank` returned as the sum of `group`, and what it sent to whom."""
    expected, counts, n = torch.stack(group).sum(dim=0), call.counts, len(group)
    used = ", ".join(counts.collectives)
    case.fail_if(used, f"calls {used}", "build it from send and receive: isend, irecv, send, recv")
    check_call(case, call, rank)
    case.equal(call.value, expected, rtol=0, atol=0, what=f"rank {rank}'s result")
    case.budget("messages a rank", counts.messages, 2 * (n - 1), "a ring has two rounds of n - 1 steps")
    allowed = 2 * (n - 1) * max(part.nbytes for part in expected.tensor_split(n))
    case.fail_if(
        counts.message_bytes > allowed,
        f"the result is right, but rank {rank} sends {counts.message_bytes:,} "
        f"bytes, and a ring needs at most {allowed:,}",
        "send one part of x in each step, not all of x",
    )
    others = sorted(counts.messages_to.keys() - {(rank + 1) % n})
    why = "in a ring each rank sends to its right neighbour only: every link is busy in every step"
    case.fail_if(others, f"the result is right, but rank {rank} sends to rank {others[0] if others else ''}", why)
