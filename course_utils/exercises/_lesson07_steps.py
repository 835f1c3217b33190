"""Which exercises of lesson 07 are training steps of a Transformer that must fit into a budget?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from course_utils import data
from course_utils.exercise import Case, exercise
from course_utils.exercises._budgets import Floor, over_budget, spend
from course_utils.exercises._trial import Model, Trial

__all__ = ["accumulate", "half_step", "quarter_step"]

SUM = 'F.cross_entropy(…, reduction="sum") adds up the losses of the tokens; divide by the number of all of them.'


@exercise(title="A step in half of the memory", minutes=8, difficulty=2, simulated=True, limit_s=20.0, hints=(
    "What is alive at the peak: the weights, or what the rows of the batch made? Which of the two can come in parts?",
    "Send a few rows at a time through the model, and call backward for each part: gradients add up in .grad. " + SUM,
    "for part, target in zip(x.split(4), y.split(4)): loss = F.cross_entropy(model(part).flatten(0, 1), "
    'target.flatten(), reduction="sum") / y.numel(); loss.backward(); total += loss.detach()',
))  # fmt: skip
def half_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Take one step on the batch and return its mean loss, with at most half of the naive peak alive."""
    optimizer.zero_grad()
    total = torch.zeros((), device=x.device)
    for part, target in zip(
        x.split(4), y.split(4), strict=True
    ):  # half of the rows is not half of the peak: the weights stay
        loss = F.cross_entropy(model(part).flatten(0, 1), target.flatten(), reduction="sum") / y.numel()
        loss.backward()  # the part's activations are gone after this line
        total += loss.detach()
    optimizer.step()
    return total


@half_step.checks
def _(case: Case) -> None:
    trial = Trial(case, width=64, context=64, layers=2)
    trial.run()
    trial.within(trial.naive_bytes // 2, "weights, gradients and the optimizer's state do not shrink with the batch: "
                 "what the rows made has to become less than half")  # fmt: skip


@exercise(title="Accumulate exactly", minutes=10, difficulty=2, simulated=True, limit_s=20.0, hints=(
    "A mean of means is not the mean: the last part may have fewer rows, and parts differ in tokens that count.",
    'How many tokens of the whole y are not -100? Divide F.cross_entropy(…, reduction="sum") of a part by that.',
    'count = (y != -100).sum(); loss = F.cross_entropy(model(part).flatten(0, 1), target.flatten(), reduction="sum") / '
    "count; loss.backward(); total += loss.detach()",
))  # fmt: skip
def accumulate(model: nn.Module, x: torch.Tensor, y: torch.Tensor, rows: int) -> torch.Tensor:
    """Leave in `model` the gradients of the whole batch's mean loss, `rows` rows at a time, and return that loss."""
    count = (y != -100).sum()  # of the whole batch, not of the part
    total = torch.zeros((), device=x.device)
    for part, target in zip(x.split(rows), y.split(rows), strict=True):
        loss = F.cross_entropy(model(part).flatten(0, 1), target.flatten(), reduction="sum") / count
        loss.backward()
        total += loss.detach()
    return total


@accumulate.checks
def _(case: Case) -> None:
    floor = Floor()
    for batch, rows, masked in ((5, 2, 0), (5, 3, 7), (3, 1, 24)):
        _accumulated(case, floor, batch, rows, masked)


def _accumulated(case: Case, floor: Floor, batch: int, rows: int, masked: int) -> None:
    """Check one batch, of whose first row `masked` places of 24 count nothing, against the batch as a whole."""
    torch.manual_seed(0)
    model = Model(64, 16, 2, 1, 24).double().to(case.device)
    x, y = data.text_batch(batch, 24, torch.Generator().manual_seed(1))
    x, y = (x % 64).to(case.device), (y % 64).to(case.device)
    y[0, :masked] = -100
    parts = [_gradients(model, x[i : i + rows], y[i : i + rows]) for i in range(0, batch, rows)]
    expected_loss, expected = _gradients(model, x, y)
    model.zero_grad()
    limit = spend(floor, lambda: [_backward(model, x[:rows], y[:rows]) for _ in range(2)]).peak_bytes
    model.zero_grad()
    before = [one.clone() for one in (x, y, *model.parameters())]
    sizes: list[int] = []
    hook = model.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
    spent = spend(floor, lambda: case.call(model, x, y, rows, modifies=True))
    hook.remove()
    same = [torch.equal(*pair) for pair in zip(before, (x, y, *model.parameters()), strict=True)]
    case.mistake(not all(same[:2]), "modifies x or y", "the caller still needs the batch")
    case.mistake(not all(same[2:]), "takes a step", "the caller does, when the gradients are complete")
    case.mistake(not model.training, "leaves the model in evaluation mode", "the next step trains it")
    got = [parameter.grad for parameter in model.parameters()]
    case.mistake(any(grad is None for grad in got), "leaves parameters without a gradient",
                 "the caller steps after this: loss.backward() for each part, and no zero_grad after it")  # fmt: skip
    nan = isinstance(spent.value, torch.Tensor) and spent.value.isnan().any()
    case.mistake(nan or any(grad.isnan().any() for grad in got), "the loss or its gradient is NaN",
                 "a part without tokens that count has no mean, 0 / 0: add up sums, divide by all")  # fmt: skip
    if masked < 24:  # else a part has no mean
        _name_the_division(case, got, expected, parts)
    case.equal(got, expected, rtol=1e-7, atol=1e-10, why="the gradients must be those of the whole batch")
    value = spent.value
    case.mistake(isinstance(value, float), "returns a Python number", "to read it, the host waits for the device")
    case.mistake(isinstance(value, torch.Tensor) and value.requires_grad, "returns the loss with its graph",
                 "whoever keeps it keeps the graph: return loss.detach()")  # fmt: skip
    alone = [loss for loss, _ in parts]
    same = isinstance(value, torch.Tensor) and value.dim() == 0
    case.mistake(same and len(parts) > 1 and torch.isclose(value.double(), alone[-1]),
                 "returns the loss of the last part", "the mean over the whole batch was asked for")  # fmt: skip
    most = max(sizes, default=rows)
    case.mistake(most < rows, f"takes {most} rows at a time, and {rows} were asked for", "each part pays all launches")
    case.equal(value.double() if same else value, expected_loss, rtol=1e-5, why="the mean over all tokens that count")
    model.zero_grad()
    over_budget(case, floor, spent, limit * 5 // 4, lambda: case.call(model, x, y, rows, modifies=True),
                f"{rows} rows at a time need less: call backward for each part before the next one starts")  # fmt: skip


def _backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    return loss.detach()


def _gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return loss and gradients of the plain batch (x, y)."""
    model.zero_grad()
    loss = _backward(model, x, y)
    return loss, [parameter.grad for parameter in model.parameters()]


def _name_the_division(case: Case, got: list, expected: list, parts: list) -> None:
    """Fail with the name of what was computed instead, if it is known."""
    count, mine, right = len(parts), _vector(got), _vector(expected)
    means = [_vector(grads) for _, grads in parts]
    last = (mine @ means[-1]) / (means[-1] @ means[-1]) * means[-1]  # whatever it was divided by
    for wrong, name, why in (
        (sum(means), "divides by nothing", f"{count} parts give gradients {count} times as large as the mean's"),
        (sum(means) / count, "takes the mean of the parts' means",
         "a part with fewer tokens that count would weigh as much as a full one: divide sums by the number of all"),
        (last, "keeps the gradients of the last part only", "backward adds to .grad: no zero_grad between the parts"),
    ):  # fmt: skip
        case.mistake(count > 1 and not _close(wrong, right) and _close(mine, wrong), name, why)


def _vector(grads: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([grad.detach().cpu().double().flatten() for grad in grads])


def _close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(got, wanted, rtol=1e-6, atol=1e-9)


@exercise(title="A step in a quarter of the memory", minutes=12, difficulty=3, simulated=True, limit_s=20.0, hints=(
    "Two levers together. Parts of few rows alone cost too much time: each part pays all launches again.",
    "Checkpointing cuts what the blocks keep, fewer rows at a time cut the logits too. TransformerLM has a switch.",
    "model.checkpointing = True, and two parts: x.chunk(2), y.chunk(2). " + SUM,
))  # fmt: skip
def quarter_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Take one step and return the mean loss, within a quarter of the naive peak and 4 times the naive time."""
    optimizer.zero_grad()
    model.checkpointing = True  # each block keeps its input; the rest is computed again, a third more work
    total = torch.zeros((), device=x.device)
    for part, target in zip(x.chunk(2), y.chunk(2), strict=True):  # and half of the logits at a time
        loss = F.cross_entropy(model(part).flatten(0, 1), target.flatten(), reduction="sum") / y.numel()
        loss.backward()
        total += loss.detach()
    model.checkpointing = False
    optimizer.step()
    return total


@quarter_step.checks
def _(case: Case) -> None:
    trial = Trial(case, width=32, context=64, layers=3)
    trial.run()
    trial.within(trial.naive_bytes // 4, "one lever is not enough: the blocks keep more than a quarter, and so do the "
                 "logits")  # fmt: skip
    case.mistake(trial.times > 4,
                 f"the result is right, but it takes {trial.times:.1f} times the naive time, and 4 are allowed",
                 "every part launches all kernels again: use fewer, larger parts (simulated time)")  # fmt: skip
