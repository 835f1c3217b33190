"""The exercise “Share out the data”."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from gpu_course.checks import Case, exercise, shown
from gpu_course.common.exemptions import RANKS
from gpu_course.common.ranks import check_call, describe, on_ranks
from gpu_course.lesson09 import cases, training


@exercise(
    title="Share out the data",
    where="real ranks on the CPU",
    minutes=8,
    difficulty=1,
    hints=(
        "DistributedSampler knows rank and world size from torch.distributed. Hand it to DataLoader as sampler=.",
        "Without sampler.set_epoch(epoch) every epoch has the same order.",
        "Make sampler and loader once, the loader with batch_size. In each epoch call set_epoch first, then take all "
        "that the loader gives, as a list.",
    ),
)
def epoch_batches(data: torch.Tensor, batch: int, epochs: int) -> list[list[torch.Tensor]]:
    """Return for each epoch this rank's batches, in another order each time."""
    sampler = DistributedSampler(data)  # shuffles with one seed on all ranks, then each takes every n-th
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    by_epoch = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # seed + epoch decide the order
        by_epoch.append(list(loader))
    return by_epoch


epoch_batches.exempt("rows are handed on as they are", "scalar empty permuted sliced")
epoch_batches.exempt(
    RANKS,
    "values half bfloat16 bool complex",
    "default_type numbers second_call random_state two_ranks four_ranks part uneven",
)


@epoch_batches.checks
def _(case: Case) -> None:
    ranks = on_ranks(
        case, cases.batches, nprocs=3, called="epoch_batches(data, batch, epochs)", known=epoch_batches.mistakes
    )
    for index, (length, batch, epochs) in enumerate(cases.SHARED_OUT):
        data, by_rank = cases.shared_out(length), []
        describe(case, f"epoch_batches({shown(data)}, {batch}, {epochs})", 3)
        for rank, calls in enumerate(ranks):
            check_call(case, calls[index], rank)
            by_rank.append(training.epochs_of(case, calls[index].value, data, batch, epochs))
        training.check_shares(case, by_rank, range(10, 10 + length))


@epoch_batches.alternative("what the sampler does, by hand: no workers, and the data must be a tensor")
def by_hand(data: torch.Tensor, batch: int, epochs: int) -> list[list[torch.Tensor]]:
    rank, n, by_epoch = dist.get_rank(), dist.get_world_size(), []
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))  # the same on every rank
        order = order.repeat(n)[: -(-len(data) // n) * n]  # some again, so that all have as many
        by_epoch.append(list(data[order[rank::n]].split(batch)))
    return by_epoch
