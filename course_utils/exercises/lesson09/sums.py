"""Which mistake is it, in a mean or a sum over ranks?"""

from __future__ import annotations

import torch

from course_utils.checks import Case
from course_utils.exercises.common.mistakes import name_first, name_unwaited
from course_utils.exercises.common.rank_calls import Call
from course_utils.exercises.common.ranks import Stuck

__all__ = ["check_mean", "check_ring", "mean_stuck", "ring_columns", "ring_stuck"]


def mean_stuck(case: Case, stuck: Stuck) -> None:
    """Name what makes a rank die, or wait for ever, in a mean over ranks."""
    why = "ranks hold different numbers of values, and a collective needs one shape on all: send the sum and the count"
    case.instead(stuck.kind == "died", f"a rank dies in a collective\n{stuck.lines}", why)
    waits = f"all ranks wait in {stuck.collective}, it does not end\n{stuck.lines}"
    case.instead(stuck.collective, waits, why)


def check_mean(case: Case, group: list[torch.Tensor], call: Call, rank: int) -> None:
    """Check what `rank` returned as the mean over `group`, the values of each rank, and what it sent."""
    got, expected = call.value, torch.cat(group).mean()
    name_unwaited(case, call, rank)
    case.instead(
        call.modified, "modifies its input", "all_reduce writes into the tensor that it gets: give it a new one"
    )
    if isinstance(got, torch.Tensor) and got.numel() == 1 and got.dtype == torch.float32:
        _name_mean(case, group, expected, got, rank)
    case.equal(got, expected, why=f"this is what rank {rank} returned")
    sent = call.counts.collective_bytes.total() + call.counts.message_bytes
    what = f"the result is right, but rank {rank} sends {sent:,} bytes for {len(group[rank]):,} values"
    case.instead(sent > 32, what, "two numbers are enough, however many values there are: the sum and the count")
    case.budget("collectives", call.counts.collectives.total(), 2, "each one waits for the slowest rank")


def _name_mean(case: Case, group: list, expected: torch.Tensor, got: torch.Tensor, rank: int) -> None:
    means, total, where = (
        torch.stack([values.mean() for values in group]),
        sum(map(torch.sum, group)),
        f" on rank {rank}",
    )
    add = "add up sums and counts, and divide once: a rank with one value must not count as much as one with three"
    every = "divide by the number of values of all ranks"

    def close(wrong: torch.Tensor) -> bool:
        near = torch.allclose(got.reshape(()), wrong, rtol=1e-5)
        return near and not torch.allclose(expected, wrong, rtol=1e-5)

    name_first(case, expected, got, (
        (bool(got.isnan()), "NaN" + where, "a rank without values has no mean, 0 / 0: add up sums and counts"),
        (close(means.mean()) or close(means.nanmean()), "a mean of means" + where, add),
        (close(total), "the sum over all ranks" + where, every),
        (close(total / len(group)), "divides by the number of ranks" + where, every),
        (close(means[rank]), "the mean of this rank alone" + where,
         "reduce gives the result to one rank; all_reduce to all, in the tensor that you hand to it"),
        (close(expected / len(group)), "divides by the number of ranks too" + where, every),
        *((rank == 0 and close(torch.cat(group[:out] + group[out + 1 :]).mean()), f"leaves out rank {out}{where}",
           "all ranks belong to the group that you get without group=") for out in range(len(group))),
        (rank == 0 and 1e-5 < float((got / expected - 1).abs()) < 0.05, "a rounded mean" + where,
         "sums and counts travel as float32: 16 bits and whole numbers round them"),
        (rank > 0 and not torch.allclose(got.reshape(()), expected), f"rank 0 has the mean, rank {rank} has not",
         "reduce gives the sum to one rank, and what the others then hold is not to be used: all_reduce"),
    ))  # fmt: skip


def ring_columns(n: int) -> list[list[torch.Tensor]]:
    """Return the x of each of `n` ranks, several times: the rank shows in each number, and n divides some lengths."""
    kinds = ((n, torch.float32), (n + 1, torch.float32))
    columns = [[torch.arange(1, size + 1).mul(10**rank).to(dtype) for rank in range(n)] for size, dtype in kinds]
    large = 2**24 + 1  # which float32 does not hold; all sums are exact
    return [*columns, [torch.arange(1, 5 * n + 1).add(10**rank).double().mul(large) for rank in range(n)]]


def ring_stuck(case: Case, stuck: Stuck) -> None:
    """Name the deadlock: dist.send returns when the other side has taken the message, dist.recv when one has come."""
    why = "send waits until the other side receives, and recv until it sends: start with isend, which does not wait"
    for name, words in (("send", "every rank sends, none receives"), ("recv", "every rank receives, none sends")):
        there = stuck.kind == "hang" and set(stuck.called) == {name}
        case.instead(there, f"deadlock: {words}\n{stuck.lines}", why)
    why = "what arrives does not fit the tensor that is to hold it: where n does not divide x, parts differ in size"
    case.instead(stuck.kind == "died", f"a rank dies while it receives\n{stuck.lines}", why)


def check_ring(case: Case, group: list[torch.Tensor], call: Call, rank: int) -> None:
    """Check what `rank` returned as the sum of `group`, and what it sent to whom."""
    got, expected, n = call.value, torch.stack(group).sum(dim=0), len(group)
    used = ", ".join(call.counts.collectives)
    case.instead(used, f"calls {used}", "build it from send and receive: isend, irecv, send, recv")
    name_unwaited(case, call, rank)
    case.instead(call.modified, "modifies its input", "tensor_split gives views of x: clone the parts before you add")
    if isinstance(got, torch.Tensor) and got.shape == expected.shape and got.dtype == expected.dtype:
        _name_ring(case, group, expected, got, rank)
    case.equal(got, expected, rtol=0, atol=0, why=f"this is what rank {rank} returned")
    case.budget("messages a rank", call.counts.messages, 2 * (n - 1), "a ring has two rounds of n - 1 steps")
    allowed = 2 * (n - 1) * max(part.nbytes for part in expected.tensor_split(n))
    sent = call.counts.message_bytes
    what = f"the result is right, but rank {rank} sends {sent:,} bytes, and a ring needs at most {allowed:,}"
    case.instead(sent > allowed, what, "send one part of x in each step, not all of x")
    others = sorted(call.counts.messages_to.keys() - {(rank + 1) % n})
    what = f"the result is right, but rank {rank} sends to rank {others[0] if others else ''}"
    case.instead(
        others, what, "in a ring each rank sends to its right neighbour only: every link is busy in every step"
    )


def _name_ring(case: Case, group: list, expected: torch.Tensor, got: torch.Tensor, rank: int) -> None:
    n, where = len(group), f" on rank {rank}"
    parts = zip(got.tensor_split(n), expected.tensor_split(n), strict=True)
    right = sum(bool(torch.equal(mine, whole)) for mine, whole in parts)
    permuted = right < n and torch.equal(got.sort().values, expected.sort().values)
    name_first(case, expected, got, (
        (torch.equal(got, group[rank]), "returns its own x" + where, "put what arrives into the result"),
        (torch.allclose(got * n, expected), "the mean" + where, "an all-reduce adds unless told otherwise"),
        (right < n and torch.allclose(got, expected, rtol=1e-5), "a rounded sum" + where,
         "what travels must have the dtype of x: torch.empty_like(part) has"),
        (permuted, "the parts are in another order" + where, "put each part back where it was cut out"),
        (bool((got > expected).any()), "some numbers are counted twice" + where,
         "each part must visit each rank once; in the second round it replaces what is there, it is not added"),
        (right == 1, f"one part of {n} holds the whole sum" + where,
         "that is the first round, a reduce-scatter: a second round hands the finished parts on"),
        (right < n and bool((got < expected).any()), f"{n - right} of {n} parts lack the numbers of some ranks" + where,
         "the first round adds what arrives; after it rank r holds the finished part (r + 1) % n, and gives that one "
         "first in the second"),
    ))  # fmt: skip
