"""Do the ranks agree, and what did they send? The exercises of lesson 09: each answer runs on real ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from course_utils.checks import Case, lesson
from course_utils.exercises.common.ranks import describe, on_ranks
from course_utils.exercises.lesson09 import cases as cases
from course_utils.exercises.lesson09 import gradients, sums, training

__all__ = ["accumulate", "average_gradients", "epoch_batches", "global_mean", "ring_all_reduce", "train"]

exercise = lesson("09")


@exercise(
    title="Average a metric",
    where="real ranks on the CPU",
    minutes=8,
    difficulty=1,
    hints=(
        "Ranks may hold different numbers of values, so a mean of means is not the mean. Which two numbers decide?",
        "Put sum and count into one tensor: torch.stack([values.sum(), values.new_tensor(len(values))]).",
        "dist.all_reduce(both) adds them over the ranks, in place; return both[0] / both[1].",
    ),
)
def global_mean(values: torch.Tensor) -> torch.Tensor:
    """Return the mean over the values of all ranks, on every rank."""
    both = torch.stack([values.sum(), values.new_tensor(len(values))])  # a sum and a count can be added up
    dist.all_reduce(both)
    return both[0] / both[1]


@global_mean.checks
def _(case: Case) -> None:
    small = [[1.0, 2.0, 3.0, 6.0], [9.0], [5.0, 2.0]], [[2.5, 4.0], [], [9.25]]
    groups = [*small, [[n] * 500 for n in (1.3, 2.7, 6.1)]]  # 16 bits would round their sums
    columns = [[torch.tensor(values) for values in group] for group in groups]
    called = "global_mean(values)"
    ranks = on_ranks(case, cases.each, columns, nprocs=3, called=called, stuck=sums.mean_stuck)
    for at, group in enumerate(columns):
        short = [f"{len(values)} values" if len(values) > 5 else str(values.tolist()) for values in group]
        describe(case, f"global_mean(values) of {', '.join(short)}", 3)
        for rank, calls in enumerate(ranks):
            sums.check_mean(case, group, calls[at], rank)


@exercise(
    title="All-reduce from send and receive",
    where="real ranks on the CPU",
    minutes=15,
    difficulty=3,
    hints=(
        "Two rounds of n - 1 steps. In the first what arrives is added to your part, in the second it replaces it.",
        "Parts: [part.clone() for part in x.tensor_split(n)]. Step s of the first round: give (rank - s) % n, take "
        "(rank - s - 1) % n. Step s of the second: give (rank + 1 - s) % n, take (rank - s) % n.",
        "A step that cannot deadlock: sent = dist.isend(parts[give], right); dist.recv(arrived, left); sent.wait().",
    ),
)
def ring_all_reduce(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of `x` over all ranks; each rank sends parts of `x` to its right neighbour only."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [part.clone() for part in x.tensor_split(n)]  # the caller's x stays as it is
    for step in range(2 * (n - 1)):
        adding = step < n - 1  # the first round adds, the second hands the finished parts on
        give = (rank - step if adding else rank + n - step) % n
        take = (give - 1) % n  # what the left neighbour gives in this step
        arrived = torch.empty_like(parts[take])
        sent = dist.isend(parts[give], (rank + 1) % n)  # returns at once: every rank can go on to receive
        dist.recv(arrived, (rank - 1) % n)
        sent.wait()  # from here on parts[give] may change
        parts[take] = parts[take] + arrived if adding else arrived
    return torch.cat(parts)


@ring_all_reduce.checks
def _(case: Case) -> None:
    for n in (2, 3, 4):
        columns = sums.ring_columns(n)
        called = "ring_all_reduce(x)"
        ranks = on_ranks(case, cases.each, columns, nprocs=n, called=called, stuck=sums.ring_stuck)
        for at, group in enumerate(columns):
            describe(case, f"ring_all_reduce(x) of {len(group[0])} elements each", n)
            for rank, calls in enumerate(ranks):
                sums.check_ring(case, group, calls[at], rank)


@exercise(
    title="Average the gradients",
    where="real ranks on the CPU",
    minutes=8,
    difficulty=2,
    hints=(
        "After backward() every rank has its own gradients. all_reduce each of them, and divide by the world size.",
        "A parameter that took no part on this rank has grad None, but other ranks wait for it in all_reduce: count it "
        "as zeros. A frozen one (requires_grad is False) has a gradient on no rank: leave it out.",
        "for parameter in model.parameters(): skip the frozen ones; where parameter.grad is None put "
        "torch.zeros_like(parameter); dist.all_reduce(parameter.grad); parameter.grad /= dist.get_world_size()",
    ),
)
def average_gradients(model: nn.Module) -> None:
    """Replace each gradient of `model` by its mean over all ranks."""
    for parameter in model.parameters():  # a shared parameter comes once
        if parameter.requires_grad:
            if parameter.grad is None:  # it took no part on this rank, but other ranks wait for it
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@average_gradients.checks
def _(case: Case) -> None:
    for kinds, stuck in ((["plain", "frozen", "tied"], None), (["unused"], gradients.unused_stuck)):
        called = f"average_gradients(model), {cases.KINDS[kinds[0]]}"
        ranks = on_ranks(case, cases.gradients, kinds, nprocs=3, called=called, stuck=stuck)
        for at, kind in enumerate(kinds):
            describe(case, f"average_gradients(model), {cases.KINDS[kind]}", 3)
            gradients.check_average(case, [rank[at] for rank in ranks])


@exercise(
    title="Accumulate with one synchronisation",
    where="real ranks on the CPU",
    minutes=8,
    difficulty=2,
    hints=(
        "Clear the gradients. Then all micro-batches but the last: forward and backward in `with model.no_sync():`.",
        "Each loss is a mean over its micro-batch. For the mean over all of them divide each by their number.",
        "for x, y in batches[:-1]: with model.no_sync(): (loss_fn(model(x), y) / len(batches)).backward(); then the "
        "last one without no_sync.",
    ),
)
def accumulate(model: DistributedDataParallel, batches: list, loss_fn: Callable) -> None:
    """Leave in `.grad` the gradient of the mean loss over all batches of all ranks, with one synchronisation."""
    model.zero_grad()
    for x, y in batches[:-1]:
        with model.no_sync():  # the forward pass too: it decides whether its backward pass synchronises
            (loss_fn(model(x), y) / len(batches)).backward()
    x, y = batches[-1]
    (loss_fn(model(x), y) / len(batches)).backward()  # adds to what is there, then all ranks average the sum


@accumulate.checks
def _(case: Case) -> None:
    counts = (4, 1)
    called = "accumulate(model, micro-batches, loss_fn)"
    ranks = on_ranks(case, cases.accumulated, counts, nprocs=2, called=called, compiler=True)
    for at, count in enumerate(counts):
        number = f"{count} micro-batch{'es' if count > 1 else ''}"
        describe(case, f"accumulate(model, {number}, {cases.loss_of(count).__name__})", 2)
        gradients.check_accumulated(case, [rank[at] for rank in ranks], count)


@exercise(
    title="Share out the data",
    where="real ranks on the CPU",
    minutes=8,
    difficulty=1,
    hints=(
        "DistributedSampler knows rank and world size from torch.distributed. Hand it to DataLoader as sampler=.",
        "Without sampler.set_epoch(epoch) every epoch has the same order.",
        "sampler = DistributedSampler(data); loader = DataLoader(data, batch_size=batch, sampler=sampler); in each "
        "epoch sampler.set_epoch(epoch), then list(loader).",
    ),
)
def epoch_batches(data: torch.Tensor, batch: int, epochs: int) -> list[list[torch.Tensor]]:
    """Return for each epoch the batches of this rank: the data shared out anew, in another order in each epoch."""
    sampler = DistributedSampler(data)  # shuffles with one seed on all ranks, then each takes every n-th
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    found = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # seed + epoch decide the order
        found.append(list(loader))
    return found


@epoch_batches.checks
def _(case: Case) -> None:
    given = ((12, 2, 3), (10, 3, 3), (13, 4, 2))
    ranks = on_ranks(case, cases.batches, given, nprocs=3, called="epoch_batches(data, batch, epochs)")
    for at, (length, batch, epochs) in enumerate(given):
        rows = f"torch.arange({cases.FIRST}, {cases.FIRST + length})"
        describe(case, f"epoch_batches({rows}, {batch}, {epochs})", len(ranks))
        training.check_shares(case, [rank[at] for rank in ranks], length, batch, epochs)


@exercise(
    title="Five faults in a training script",
    where="real ranks on the CPU",
    minutes=12,
    difficulty=3,
    hints=(
        "First the hang: which rank waits in which line, and why does the other never come there?",
        "Which line makes DistributedDataParallel average? Who may write the file? What does the sampler not know?",
        "set_epoch(epoch) in each epoch; ddp(x), not ddp.module(x); all_reduce outside of `if rank == 0`; torch.save "
        "of ddp.module.state_dict() inside of it.",
    ),
)
def train(model: nn.Module, data: Dataset, path: Path, epochs: int) -> list[float]:
    """Train `model` on all ranks, save it once, and return for each epoch the mean over ranks of the last loss."""
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    sampler = DistributedSampler(data)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # 1: else every epoch has the same order
        for x, y in DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(ddp(x), y)  # 2: ddp.module(x) goes around the averaging
            loss.backward()
            optimizer.step()
        last = loss.detach()
        dist.all_reduce(last, op=dist.ReduceOp.AVG)  # 3: on every rank, else one waits for ever
        losses.append(last.item())
    if dist.get_rank() == 0:  # 4: ranks that write to one file destroy it
        torch.save(ddp.module.state_dict(), path)  # 5: the names of ddp.state_dict() begin with "module."
    return losses


@train.checks
def _(case: Case) -> None:
    called = f"train(model, data of {cases.LENGTH} samples, path, {cases.EPOCHS})"
    stuck = training.train_stuck
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        ranks = on_ranks(case, cases.trained, folder, nprocs=3, called=called, compiler=True, stuck=stuck)
        training.check_training(case, ranks)
        training.check_files(case, [Path(folder) / f"rank{rank}" for rank in range(3)], ranks)
