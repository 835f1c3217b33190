"""The exercise “Repair the reads”."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpu_course.checks import Case, exercise
from gpu_course.lesson06.cases import original
from gpu_course.lesson06.repairs import tried


@exercise(
    minutes=10,
    difficulty=2,
    simulated=True,
    limit_s=20,
    hints=(
        "Which calls make the host wait? Replace each by something that leaves its value on the device.",
        "Keep each loss detached, and stack the list at the end: then one read is enough. For the norm, PyTorch has a "
        "function that clips.",
        "nn.utils.clip_grad_norm_(model.parameters(), 0.12) computes the norm and the factor on the device. Behind the "
        "loop, make one tensor of all losses, and read its mean with one .item().",
    ),
)
def repair_reads(model: nn.Module, optimizer: torch.optim.Optimizer, photos: Any, device: torch.device) -> float:
    """Train as case 2 does and return the mean loss; read once, at the end."""
    losses = []
    for x, y in photos.loader(pin_memory=True):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x / 255), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.12)  # the norm stays on the device
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()  # the one read


repair_reads.exempt("the simulated GPU keeps the time, and no place is named", "cpu elsewhere default_type")
repair_reads.exempt("it trains the model of its case, as the case made it", "models second_call other_input unchanged")


@repair_reads.checks
def _(case: Case) -> None:
    run = tried(case, 2)
    reads = sum("D2H" in wait.name for wait in run.timeline.select("wait"))
    case.fail_if(reads > 1, f"reads {reads} times", "keep the values on the device: the host reads once, at the end")
    case.equal(run.got, original(2).got, rtol=1e-5)
