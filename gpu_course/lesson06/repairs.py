"""Is a program of lesson 06 repaired? What it does is compared with the case, its trace with what it was to gain."""

import textwrap
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from course_utils import devices
from gpu_course.checks import Case, Task, WrongAnswer, difference, edit, lesson
from gpu_course.lesson06.cases import CASES, CaseRun, lost_ms, original

exercise = lesson("06")


def repaired(number: int, program: Callable) -> None:
    """Print whether `program` repairs a case, or what is wrong: the checks of `repair_reads` for any case."""

    def judge() -> str:
        task = Task("06", "repair", "A repair", minutes=5, difficulty=2, hints=(), draws=True, limit_s=20)
        case = Case(task, program, torch.device("sim", 0))
        try:
            run = tried(case, number)
            needed = original(number).got
            shown = ", ".join(f"{one:.4f}" for one in (needed if isinstance(needed, tuple) else (needed,)))
            case.instead(difference(run.got, needed, rtol=1e-4), "returns something else", f"the case returns {shown}")
        except WrongAnswer as wrong:
            name, why = wrong.finding.name, wrong.finding.why
            return f"not repaired: it {name} ({why})" if why else f"not repaired: it {name}"
        before_ms, now_ms = original(number).timeline.total_ms, run.timeline.total_ms
        label = textwrap.fill(str(run.timeline.evidence), 88, initial_indent="  ", subsequent_indent="  ")
        return f"repaired, {before_ms:.2f} ms before, {now_ms:.2f} ms now\n{label}"

    print(f"case {number}: {devices.on_simulated(judge)}")


def tried(case: Case, number: int) -> CaseRun:
    """Let the answer run in place of the program of a case, and check all but what it returned."""
    run = CaseRun(number, case.device).do(lambda *given: case.call(*given, modifies=True))
    compare(case, number, run)
    return run


def compare(case: Case, number: int, run: CaseRun) -> None:
    """Fail with what a program does not do of what the case does, what it does otherwise, and which cause it leaves."""
    before = original(number)
    for what, did, needed in (
        ("batches loaded", run.photos.loaded, before.photos.loaded),
        ("samples through the model", sum(run.samples), sum(before.samples)),
        ("backward passes", run.backwards, before.backwards),
        ("optimizer steps", len(run.steps), len(before.steps)),
    ):
        case.instead(did < needed, "is faster by doing less", f"{what}: {did} instead of {needed}")
        case.instead(did > needed, "does more than before", f"{what}: {did} instead of {needed}")
    mode = all(module.training for module in run.model.modules())
    case.instead(not mode, "leaves the model in evaluation mode", "it came in training mode, and the caller goes on")
    other = (run.learned() - before.learned()).norm() / before.learned().norm()
    case.instead(
        other > 0.01,
        "changes the result",
        "the parameters move elsewhere than before",
        expected="the updates of the case, within 1 %",
        got=f"updates that are {other:.0%} away from them",
    )
    steps = len(before.steps)
    waits = [[wait for wait in one.timeline.select("wait") if "H2D" not in wait.name] for one in (run, before)]
    reads, were = map(len, waits)
    computing = (launch.start_ns for launch in run.timeline.select("launch") if "copy" not in launch.name)
    last_ns = max(computing, default=0)
    behind = sum(wait.start_ns > last_ns for wait in waits[0])  # when nothing is left to compute
    for cause in sorted(CASES[number][0] - {"none"}):
        left, lost = lost_ms(run.timeline)[cause], lost_ms(before.timeline)[cause]
        launches = [len(one.timeline.select("launch")) for one in (run, before)]
        same = f"{left:.2f} ms of idle GPU are put down to this cause, {lost:.2f} ms before"
        case.instead(
            cause == "synchronisation" and steps <= behind,
            "reads one number after the other behind the loop",
            f"the host waits {behind} times there: make one tensor of all of them, and read that once",
        )
        case.instead(
            cause == "synchronisation" and steps <= reads < 0.9 * were,
            "moves the synchronisation, does not remove it",
            f"the host waits {reads} times in {steps} steps: one read at the end is enough",
        )
        case.instead(
            left > 0.25 * lost and launches[0] < 0.9 * launches[1] and len(CASES[number][0]) == 1,
            "repairs another cause",
            f"{launches[0]} launches instead of {launches[1]}, but {same}",
        )
        case.instead(0.25 * lost < left < 0.8 * lost, f"leaves part of a cause: {cause}", same)
        case.instead(left > 0.25 * lost, f"leaves a cause as it is: {cause}", same)
        case.instead(
            cause == "host work" and reads >= steps,
            "brings the data back to the host in every step",
            f"the host waits {reads} times in {steps} steps: the device can compute this itself",
        )
    gained = sum(lost_ms(before.timeline)[cause] for cause in CASES[number][0])
    total, allowed = run.timeline.total_ms, before.timeline.total_ms - 0.6 * gained
    case.instead(
        total > allowed,
        "removes the cause, and is slow for another reason",
        f"{total:.2f} ms, expected at most {allowed:.2f}; before {before.timeline.total_ms:.2f}. The host launches "
        f"{len(run.timeline.select('launch'))} times, before {len(before.timeline.select('launch'))}",
    )


@exercise(
    title="Repair the reads",
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


repair_reads.leaves_out("the simulated GPU keeps the time, and no place is named", "cpu elsewhere default_type")
repair_reads.leaves_out(
    "it trains the model of its case, as the case made it",
    "models second_call other_input unchanged",
)


@repair_reads.checks
def _(case: Case) -> None:
    run = tried(case, 2)
    reads = sum("D2H" in wait.name for wait in run.timeline.select("wait"))
    case.instead(
        reads > 1, f"reads {reads} times", "keep the values on the device: the host reads only once, at the end"
    )
    case.equal(run.got, original(2).got, rtol=1e-5)


repair_reads.alternative(
    "the clipping by hand: two kernels more, and it shows what clip_grad_norm_ does",
    edit("""
        -        nn.utils.clip_grad_norm_(model.parameters(), 0.12)  # the norm stays on the device
        +        gradients = [p.grad for p in model.parameters()]
        +        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        +        torch._foreach_mul_(gradients, (0.12 / (norm + 1e-6)).clamp(max=1.0))
    """),
)


@exercise(
    title="Two causes, and an honest gain",
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


repair_both.leaves_out("the simulated GPU keeps the time, and no place is named", "cpu elsewhere default_type")
repair_both.leaves_out(
    "it trains the model of its case, as the case made it",
    "models second_call other_input unchanged",
)


@repair_both.checks
def _(case: Case) -> None:
    run, read = CaseRun(6, case.device), []

    def clock() -> float:
        read.append((len(run.steps), simgpu.idle()))
        return simgpu.clock_ms()

    run.do(lambda *given: case.call(*given, clock, torch.get_device_module("sim").synchronize, modifies=True))
    compare(case, 6, run)
    steps = len(run.steps)
    case.instead(len(read) < 2, "does not read the clock twice", f"it reads it {len(read)} time(s)")
    starts = [idle for done, idle in read if done == 1]
    case.instead(
        not starts and read[0][0] == 0,
        "measures the first step too",
        "the first step waits for the first "
        "batch, and on a real GPU for much else that no later step does: start the clock behind it",
    )
    case.instead(not starts, "leaves out more than the first step", f"{read[0][0]} were done when the clock started")
    case.instead(
        False in starts[-1:],
        "starts the clock while the GPU is still busy",
        "what is left of the first step then counts as time of the others: synchronize() before clock()",
    )
    case.instead(
        not read[-1][1],
        "stops the clock before the GPU is done",
        "you measure the time of the launches alone: synchronize() before clock()",
    )
    took = run.steps[0].elapsed_time(run.steps[-1]) / (steps - 1)
    case.instead(not isinstance(run.got, tuple) or len(run.got) != 3, "does not return a tuple of three", got=run.got)
    case.equal(run.got[:2], original(6).got, rtol=1e-5)
    why = f"ms a step, from the end of the first of {steps} steps to the end of the last: that is {steps - 1} steps"
    case.equal(run.got[2], took, rtol=0.08, why=why)


@repair_both.alternative("an iterator: the first step stands apart; the step becomes a function of its own")
def _(model, optimizer, photos, device, clock, synchronize):
    def step(x, y):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x / 255), y)
        loss.backward()
        optimizer.step()  # leaves the gradients as they are
        return loss.detach(), torch.stack([p.grad.abs().max() for p in model.parameters()]).max()

    batches = photos.loader(num_workers=8, pin_memory=True)
    kept = [step(*next(batches))]
    synchronize()
    begin_ms = clock()
    kept += [step(x, y) for x, y in batches]
    synchronize()
    step_ms = (clock() - begin_ms) / (len(kept) - 1)
    losses, largest = (torch.stack(values) for values in zip(*kept, strict=True))
    return losses.mean().item(), largest.max().item(), step_ms
