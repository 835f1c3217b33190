"""The exercise “Two causes, and an honest gain”."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from gpu_course.checks import Case, exercise
from gpu_course.lesson06.cases import CaseRun, original
from gpu_course.lesson06.repairs import compare


@exercise(
    minutes=25,
    difficulty=3,
    simulated=True,
    limit_s=20,
    hints=(
        "There are two repairs: who loads the batches, and where the losses and the largest gradient are kept. Then "
        "comes the clock.",
        "torch.maximum(a, b) keeps the larger of two values on the device. Read the clock twice, each time with an "
        "empty queue: after the first step, and after the last.",
        "In the loop: if number == 0, call synchronize() and then begin = clock(). Behind the loop, call synchronize() "
        "again, and divide the difference by the number of steps between the two: one less than there are batches.",
    ),
)
def repair_both(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    photos: Any,
    device: torch.device,
    clock: Callable[[], float],
    synchronize: Callable[[], None],
) -> tuple[float, float, float]:
    """Train as case 6 does; return mean loss, largest gradient, and ms of a step."""
    losses, largest = [], torch.zeros((), device=device)
    for number, (x, y) in enumerate(photos.loader(num_workers=8, pin_memory=True)):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x / 255), y)
        loss.backward()
        for p in model.parameters():
            largest = torch.maximum(largest, p.grad.abs().max())  # stays on the device
        optimizer.step()
        losses.append(loss.detach())
        if number == 0:  # warm: the first step is not measured
            synchronize()
            begin_ms = clock()
    synchronize()  # the last step is done, not only launched
    step_ms = (clock() - begin_ms) / (len(losses) - 1)
    return torch.stack(losses).mean().item(), largest.item(), step_ms


repair_both.exempt("the simulated GPU keeps the time, and no place is named", "cpu elsewhere default_type")
repair_both.exempt("it trains the model of its case, as the case made it", "models second_call other_input unchanged")


@repair_both.checks
def _(case: Case) -> None:
    run, read = CaseRun(6, case.device), []

    def clock() -> float:
        read.append((len(run.steps), simgpu.idle()))
        return simgpu.clock_ms()

    wait = torch.get_device_module("sim").synchronize
    run.do(lambda *given: case.call(*given, clock, wait, modifies="training"))
    compare(case, 6, run)
    steps = len(run.steps)
    case.fail_if(len(read) < 2, "does not read the clock twice", f"it reads it {len(read)} time(s)")
    starts = [idle for done, idle in read if done == 1]
    why = (
        "the first step waits for the first batch, and on a real GPU for much else that no later step does: start the "
        "clock behind it"
    )
    case.fail_if(not starts and read[0][0] == 0, "measures the first step too", why)
    case.fail_if(not starts, "leaves out more than the first step", f"{read[0][0]} were done when the clock started")
    why = "what is left of the first step then counts as time of the others: synchronize() before clock()"
    case.fail_if(False in starts[-1:], "starts the clock while the GPU is still busy", why)
    why = "you measure the time of the launches alone: synchronize() before clock()"
    case.fail_if(not read[-1][1], "stops the clock before the GPU is done", why)
    took = run.steps[0].elapsed_time(run.steps[-1]) / (steps - 1)
    case.fail_if(not isinstance(run.got, tuple) or len(run.got) != 3, "does not return a tuple of three", got=run.got)
    case.equal(run.got[:2], original(6).got, rtol=1e-5)
    why = f"ms a step, from the end of the first of {steps} steps to the end of the last: that is {steps - 1} steps"
    case.equal(run.got[2], took, rtol=0.08, why=why)
    elsewhere, grown = CaseRun(6, case.device), []

    def grow(gradient: torch.Tensor) -> torch.Tensor:
        grown.append(gradient * (1e4 if len(grown) == steps - 1 else 1))
        return grown[-1]

    hook = next(elsewhere.model.parameters()).register_hook(grow)
    elsewhere.do(lambda *given: case.call(*given, clock, wait, modifies="training"))
    hook.remove()
    why = "in the last step a hook makes the gradient of the first parameter 10,000 times as large"
    case.equal(elsewhere.got[1], grown[-1].abs().max().item(), rtol=1e-5, what="the largest gradient", why=why)
