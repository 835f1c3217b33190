"""Do the ranks agree, and what did they send? The exercises of lesson 09: each answer runs on real ranks."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gpu_course.checks import Case, edit, lesson, shown
from gpu_course.common import with_ranks  # noqa: F401 (says where there are none)
from gpu_course.common.gradients import averaged, check_average
from gpu_course.common.left_out import RANKS
from gpu_course.common.rank_calls import Call
from gpu_course.common.ranks import check_call, describe, on_ranks
from gpu_course.lesson09 import cases as cases
from gpu_course.lesson09 import training
from gpu_course.lesson09.torchrun import torchrun
from ranklaunch import preload

__all__ = ["accumulate", "average_gradients", "epoch_batches", "global_mean", "ring_all_reduce", "torchrun", "train"]

exercise, _WHERE = lesson("09"), "real ranks on the CPU"
preload("course_utils.counting")  # the ranks of many cells use it


@exercise(
    title="Average a metric",
    where=_WHERE,
    minutes=8,
    difficulty=1,
    hints=(
        "Ranks may hold different numbers of values, so a mean of means is not the mean. Which two numbers decide?",
        "A sum and a count can be added up over the ranks, and a rank without values adds zero to both.",
        "Put both into one tensor, with torch.stack and values.new_tensor; dist.all_reduce adds in place. Divide once.",
    ),
)
def global_mean(values: torch.Tensor) -> torch.Tensor:
    """Return the mean over the values of all ranks, on every rank."""
    sum_and_count = torch.stack([values.sum(), values.new_tensor(len(values))])  # both can be added up
    dist.all_reduce(sum_and_count)
    return sum_and_count[0] / sum_and_count[1]


global_mean.leaves_out("the text says one dimension", "scalar permuted sliced")
global_mean.leaves_out(
    RANKS, "huge tiny not_finite formats default_type second_call random_state two_ranks four_ranks part"
)


@global_mean.checks
def _(case: Case) -> None:
    why = "ranks hold different numbers of values, but a collective needs one shape on all: send the sum and the count"
    ranks = on_ranks(
        case,
        cases.each,
        cases.mean_columns,
        nprocs=3,
        called="global_mean(values)",
        known=global_mean.mistakes,
        why=why,
    )
    for index, group in enumerate(cases.mean_columns(3)):
        short = [f"{len(values)} values" if len(values) > 5 else str(values.tolist()) for values in group]
        describe(case, f"global_mean(values) of {', '.join(short)}", 3)
        for rank, calls in enumerate(ranks):
            call, counts = calls[index], calls[index].counts
            check_call(case, call, rank)
            case.equal(call.value, torch.cat(group).mean(), what=f"rank {rank}'s result")
            nbytes = max([counts.message_bytes // max(counts.messages, 1), *counts.collective_bytes.values()])
            case.instead(
                nbytes > 2 * call.width,
                f"the result is right, but rank {rank} sends {nbytes:,} bytes for {len(group[rank]):,} values",
                "two numbers are enough, however many values there are: the sum and the count",
            )
            case.budget("collectives", counts.collectives.total(), 2, "each one waits for the slowest rank")


global_mean.alternative(
    "shorter to read, but each all-reduce pays its own latency",
    edit("""
-    sum_and_count = torch.stack([values.sum(), values.new_tensor(len(values))])  # both can be added up
-    dist.all_reduce(sum_and_count)
+    sum_and_count = values.sum(), torch.tensor(float(len(values)), device=values.device)  # both can be added up
+    for number in sum_and_count:
+        dist.all_reduce(number)
    """),
)


@exercise(
    title="All-reduce from send and receive",
    where=_WHERE,
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


ring_all_reduce.leaves_out("the text says one dimension, of which each rank has a part", "scalar empty permuted sliced")
ring_all_reduce.leaves_out(
    RANKS,
    "tiny not_finite zero negative tied half bfloat16 whole bool complex",
    "default_type second_call random_state four_ranks part",
)
ring_all_reduce.leaves_out("x has one length on all ranks", "uneven")


@ring_all_reduce.checks
def _(case: Case) -> None:
    why = "the tensor that you receive into must have the size of what arrives: parts differ where n does not divide x"
    for n in (2, 3, 1):  # for one and two, and steps that are neither first nor the only ones
        ranks = on_ranks(
            case,
            cases.each,
            cases.ring_columns,
            nprocs=n,
            called="ring_all_reduce(x)",
            known=ring_all_reduce.mistakes,
            why=why,
        )
        for index, group in enumerate(cases.ring_columns(n)):
            describe(case, f"ring_all_reduce(x) of {len(group[0])} elements each", n)
            for rank, calls in enumerate(ranks):
                _check_ring(case, group, calls[index], rank)


def _check_ring(case: Case, group: list[torch.Tensor], call: Call, rank: int) -> None:
    """Check what `rank` returned as the sum of `group`, and what it sent to whom."""
    expected, counts, n = torch.stack(group).sum(dim=0), call.counts, len(group)
    used = ", ".join(counts.collectives)
    case.instead(used, f"calls {used}", "build it from send and receive: isend, irecv, send, recv")
    check_call(case, call, rank)
    case.equal(call.value, expected, rtol=0, atol=0, what=f"rank {rank}'s result")
    case.budget("messages a rank", counts.messages, 2 * (n - 1), "a ring has two rounds of n - 1 steps")
    allowed = 2 * (n - 1) * max(part.nbytes for part in expected.tensor_split(n))
    case.instead(
        counts.message_bytes > allowed,
        f"the result is right, but rank {rank} sends {counts.message_bytes:,} "
        f"bytes, and a ring needs at most {allowed:,}",
        "send one part of x in each step, not all of x",
    )
    others = sorted(counts.messages_to.keys() - {(rank + 1) % n})
    case.instead(
        others,
        f"the result is right, but rank {rank} sends to rank {others[0] if others else ''}",
        "in a ring each rank sends to its right neighbour only: every link is busy in every step",
    )


@ring_all_reduce.alternative("`batch_isend_irecv` starts both messages together; NCCL can run them as one operation")
def exchanges_in_batches(x: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = x.clone()
    parts = whole.tensor_split(n)  # views: what is written into a part is in the whole
    for step in range(2 * (n - 1)):
        give, take = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        came = torch.empty_like(take)
        both = [dist.P2POp(dist.isend, give, (rank + 1) % n), dist.P2POp(dist.irecv, came, (rank - 1) % n)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        take.copy_(take + came if step < n - 1 else came)
    return whole


@exercise(
    title="Average the gradients",
    where=_WHERE,
    minutes=10,
    difficulty=2,
    hints=(
        "After backward(), every rank has its own gradients. Call all_reduce on each, and divide by the world size.",
        "A parameter that took no part on this rank has grad None, but other ranks wait for it in all_reduce: give it "
        "a gradient of zeros. A frozen one (requires_grad is False) has a gradient on no rank: leave it out.",
        "Go through model.parameters(), which lists a shared one once. torch.zeros_like makes a missing gradient; "
        "a sum over the ranks becomes a mean by one division.",
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


average_gradients.leaves_out(RANKS, "default_type second_call unchanged random_state two_ranks four_ranks part")
average_gradients.leaves_out(
    "only gradients are asked, whatever the model is",
    "evaluation all_frozen two_groups scalar_parameter",
)
average_gradients.leaves_out("all ranks have the same model", "uneven")


@average_gradients.checks
def _(case: Case) -> None:
    why = "all ranks must call the same collectives, in the same order: where a parameter took no part, with zeros"
    ranks = on_ranks(
        case,
        averaged,
        tuple(cases.KINDS),
        nprocs=3,
        called="average_gradients(model)",
        known=average_gradients.mistakes,
        why=why,
    )
    for index, words in enumerate(cases.KINDS.values()):
        describe(case, f"average_gradients(model), {words}", 3)
        check_average(case, [rank[index] for rank in ranks])


@average_gradients.alternative("one all-reduce, so one latency, but a copy of all gradients; DDP's buckets lie between")
def one_vector(model: nn.Module) -> None:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    given = [torch.zeros_like(one) if one.grad is None else one.grad for one in trained]
    flat = torch.cat([gradient.flatten() for gradient in given])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for parameter, mean in zip(trained, flat.split([one.numel() for one in trained]), strict=True):
        parameter.grad = mean.view_as(parameter).clone()


@exercise(
    title="Accumulate with one synchronisation",
    where=_WHERE,
    minutes=10,
    difficulty=2,
    hints=(
        "Clear the gradients first. Which of the backward passes should exchange gradients, and which should not?",
        "Each loss is a mean over its micro-batch. For the mean over all micro-batches, divide each loss by their "
        "number.",
        "All micro-batches but the last, batches[:-1], run forward and backward inside model.no_sync(). The last one "
        "runs outside of it.",
    ),
)
def accumulate(model: DistributedDataParallel, batches: list, loss_fn: Callable) -> None:
    """Leave the gradient of the mean loss in `.grad`, with one synchronisation."""

    def backward(x, y):
        loss = loss_fn(model(x), y) / len(batches)
        loss.backward()  # adds to what is there

    model.zero_grad()
    for batch in batches[:-1]:
        with model.no_sync():  # the forward pass too: it decides whether its backward pass synchronises
            backward(*batch)
    backward(*batches[-1])  # all ranks average the sum


accumulate.leaves_out("a micro-batch is what the model takes", "scalar empty single permuted sliced")
accumulate.leaves_out(
    RANKS,
    "huge tiny not_finite zero tied formats",
    "default_type no_entries order second_call unchanged random_state three_ranks four_ranks part uneven",
)
accumulate.leaves_out(
    "only gradients are asked, whatever the model is",
    "evaluation frozen all_frozen shared two_groups double_model scalar_parameter",
)


@accumulate.checks
def _(case: Case) -> None:
    ranks = on_ranks(
        case,
        cases.accumulated,
        nprocs=2,
        called="accumulate(model, micro-batches, loss_fn)",
        known=accumulate.mistakes,
        compiler=True,
    )
    for index, count in enumerate(cases.MICRO_BATCHES):
        number = f"{count} micro-batch{'es' if count > 1 else ''}"
        describe(case, f"accumulate(model, {number}, {cases.loss_of(count).__name__})", 2)
        training.check_accumulated(case, [rank[index] for rank in ranks], count)


@accumulate.alternative("one loop and no helper; the condition takes a moment to read")
def one_loop(model: DistributedDataParallel, batches: list, loss_fn: Callable) -> None:
    model.zero_grad()
    for place, (x, y) in enumerate(batches, 1):
        with model.no_sync() if place < len(batches) else contextlib.nullcontext():
            (loss_fn(model(x), y) / len(batches)).backward()


@exercise(
    title="Share out the data",
    where=_WHERE,
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


epoch_batches.leaves_out("rows are handed on as they are", "scalar empty permuted sliced")
epoch_batches.leaves_out(
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


@exercise(
    title="Five faults in a training script",
    where=_WHERE,
    minutes=15,
    difficulty=3,
    hints=(
        "Begin with the hang. Which rank waits in which line, and why does the other never reach that line?",
        "In which line should DistributedDataParallel average? Who may write the file? What does the sampler not know?",
        "Tell the sampler each epoch. Call ddp(x), else nothing is averaged. Let all ranks call the collective. Let "
        "rank 0 alone write the file, with the state dict of the model inside: ddp.module.",
    ),
)
def train(model: nn.Module, data: Dataset, path: Path, epochs: int) -> list[float]:
    """Train on all ranks, save once, return the mean last loss of each epoch."""
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


train.leaves_out(RANKS, "default_type numbers second_call unchanged random_state two_ranks four_ranks part uneven")
train.leaves_out(
    "the script says which model and optimizer it trains",
    "evaluation frozen all_frozen shared old_gradients two_groups double_model scalar_parameter",
)


@train.checks
def _(case: Case) -> None:
    called = f"train(model, data of {cases.LENGTH} samples, path, {cases.EPOCHS})"
    ranks = on_ranks(
        case,
        cases.trained,
        nprocs=3,
        called=called,
        known=train.mistakes,
        compiler=True,
        why="every rank must call the same collectives in the same order, and DistributedDataParallel "
        "calls some in backward()",
    )
    if training.check_training(case, ranks):
        training.check_files(case, ranks)


train.alternative(
    "a sum works with every backend, also where ReduceOp.AVG is missing",
    edit("""
        -        dist.all_reduce(last, op=dist.ReduceOp.AVG)  # 3: on every rank, else one waits for ever
        -        losses.append(last.item())
        +        dist.all_reduce(last)  # 3: on every rank, else one waits for ever
        +        losses.append(last.item() / dist.get_world_size())
    """),
)
