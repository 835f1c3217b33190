"""The exercise “A step in a quarter of the memory”."""

import dataclasses
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from course_utils import data
from gpu_course.checks import Case, exercise
from gpu_course.common.budgets import Floor, Spent, over_budget, spend
from gpu_course.common.exemptions import TRAINING
from gpu_course.common.probes import named, state_of, unchanged
from gpu_course.lesson07.steps import Model, compare_loss, lies, name_gradient, row_gradients, rows_of, vector


@exercise(
    minutes=12,
    difficulty=3,
    simulated=True,
    limit_s=20.0,
    hints=(
        "Use two levers together. Parts of few rows alone take too much time, since each part pays all launches again.",
        "Checkpointing cuts what the blocks keep. Fewer rows at a time cut the logits, too. TransformerLM has "
        "a switch for checkpointing.",
        "Note how the switch stands and turn checkpointing on. Leave the gradients of the whole batch in two parts of "
        "half of the rows each (accumulate does that), put the switch back, and step once.",
    ),
)
def quarter_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Take one step in a quarter of the naive peak, and return its mean loss."""
    optimizer.zero_grad()
    was, model.checkpointing = model.checkpointing, True  # each block keeps its input; the rest is computed again
    total = torch.zeros((), device=x.device)
    for part, target in zip(x.split(8), y.split(8), strict=True):  # and half of the logits at a time
        loss = F.cross_entropy(model(part).flatten(0, 1), target.flatten(), reduction="sum") / y.numel()
        loss.backward()
        total += loss.detach()
    model.checkpointing = was
    optimizer.step()
    return total


quarter_step.exempt(
    TRAINING,
    "shapes half bfloat16 double bool complex huge tiny not_finite zero negative places default_type second_call "
    "unchanged evaluation frozen all_frozen two_groups double_model scalar_parameter",
)
quarter_step.exempt("it is another step of the same training", "other_input")


@quarter_step.checks
def _(case: Case) -> None:
    """Take two steps with the answer and two naive ones, on equal models and the same text.

    Before the first there are gradients of somebody else, and the lever is switched on already.
    """
    floor, rates = Floor(), simgpu.settings()
    naive, weights = _naive(case.device, rates.costs, rates.spec)
    model, optimizer = _start(case.device)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    batches = [[one.to(case.device) for one in batch] for batch in _batches()]
    model.watch()
    steps, spent, moved_bytes = [], [], 0
    optimizer.register_step_post_hook(lambda *given: steps.append(True))
    for number, (batch, copies) in enumerate(zip(batches, _batches(), strict=True)):
        steps.clear()
        model.checkpointing = number == 0
        model.again.clear()
        state, call = state_of(model), functools.partial(case.call, model, optimizer, *batch, modifies="training")
        spent.append(spend(floor, call))
        moved_bytes += case.counts.bytes_d2h
        changed = any(not torch.equal(now.cpu(), before) for now, before in zip(batch, copies, strict=True))
        case.fail_if(changed, "modifies x or y", "the caller still needs the batch")
        case.fail_if(not steps, "takes no step with the given optimizer", "the weights change in optimizer.step()")
        why = "gradients of all parts add up in .grad: step once, after all"
        case.fail_if(len(steps) > 1, f"takes {len(steps)} steps", why)
        now = vector(model.parameters())
        if not torch.allclose(now, weights[number + 1], rtol=1e-4, atol=2e-6):
            _name_change(case, number, now, weights)
            return
        compare_loss(case, spent[number].value, naive[number].value.to(case.device))
        fewer_flops = spent[number].flops < 0.99 * naive[number].flops
        why = "the budget is that of the device's memory, and the work stays there"
        case.fail_if(fewer_flops, "computes on the CPU what belongs on the device", why)
        unchanged(case, state, model, "the next step would go another way")
    at_once, again = max(model.went, default=0), "the" if model.again else "no"
    why = (
        f"{rows_of(at_once)} went through the model at a time, and backward computed {again} blocks again; "
        "weights, gradients and the optimizer's state do not shrink with the batch"
    )
    limit_bytes = max(step.peak_bytes for step in naive) // 4
    over_budget(case, floor, max(spent, key=lambda step: step.peak_bytes), limit_bytes, call, why)
    times = sum(step.time_ms for step in spent) / sum(step.time_ms for step in naive)
    why = f"with {rows_of(at_once)} at a time: every part launches all kernels again (simulated time)"
    if moved_bytes > naive[0].peak_bytes:
        why = "what goes to the host and comes back waits for the bus (simulated time)"
    case.fail_if(
        times > 6, f"the result is right, but it takes {times:.1f} times the naive time, and 6 are allowed", why
    )


def naive_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Take one step on the whole batch at once and return its mean loss: the program of lesson 07 to improve."""
    optimizer.zero_grad()
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


def _start(device: torch.device) -> tuple[Model, torch.optim.SGD]:
    """Return a model with the same first weights each time, and its optimizer."""
    torch.manual_seed(0)
    model = Model(256, 32, 2, 3, 64).to(device)
    return model, named(torch.optim.SGD, "optimizer")(model.parameters(), lr=0.1, momentum=0.9)


def _batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    return [data.text_batch(16, 64, drawn) for _ in range(2)]


@functools.cache
def _naive(device: torch.device, *rates: Any) -> tuple[list[Spent], list[torch.Tensor]]:
    """Return what two naive steps give and take, and the weights around them: at these `rates` always the same."""
    floor, (model, optimizer) = Floor(), _start(device)
    taken, weights = [], [vector(model.parameters())]
    for x, y in _batches():
        spent = spend(floor, functools.partial(naive_step, model, optimizer, x.to(device), y.to(device)))
        taken.append(dataclasses.replace(spent, value=spent.value.cpu()))
        weights.append(vector(model.parameters()))
    return taken, weights


def _name_change(case: Case, number: int, now: torch.Tensor, weights: list[torch.Tensor]) -> None:
    """Fail with how the weights `now`, after step `number`, differ from `weights[number + 1]`."""
    if number:
        why = "something of the first step is left or lost: gradients, the optimizer's state, its settings"
        said = lies(now - weights[1], weights[2] - weights[1])
        case.fail_if(True, "the first step is right, the second is not", why, **said)
        return
    mine, right = now - weights[0], weights[1] - weights[0]
    case.fail_if(
        not mine.any(),
        "takes a step, and no weight changes",
        "when optimizer.step() runs, the gradients must be in the model's parameters: backward before it, no "
        "zero_grad between the two",
    )
    name_gradient(case, "the step", mine, right, _row_steps)


@functools.cache
def _row_steps() -> list[torch.Tensor]:
    """Return what each row of the first batch adds to the first naive step."""
    model, optimizer = _start(torch.device("cpu"))
    return [-optimizer.param_groups[0]["lr"] * row for row in row_gradients(model, *_batches()[0])]
