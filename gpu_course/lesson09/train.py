"""The exercise “Five faults in a training script”."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import RANKS
from gpu_course.common.ranks import on_ranks
from gpu_course.lesson09 import cases, training


@exercise(
    where="real ranks on the CPU",
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


train.exempt(RANKS, "default_type numbers second_call unchanged random_state two_ranks four_ranks part uneven")
train.exempt(
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
        compiler=True,
        why="every rank must call the same collectives in the same order, and DistributedDataParallel "
        "calls some in backward()",
    )
    if training.check_training(case, ranks):
        training.check_files(case, ranks)
