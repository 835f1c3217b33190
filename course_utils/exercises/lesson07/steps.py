"""Which exercises of lesson 07 are training steps of a Transformer that must fit into a budget?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from course_utils import data
from course_utils.checks import Case, lesson
from course_utils.exercises.common.budgets import Floor, over_budget, spend
from course_utils.exercises.common.part_weights import part_weights, vector
from course_utils.exercises.common.probes import left_changed, state_of
from course_utils.exercises.lesson07.trial import Model, Trial

__all__ = ["accumulate", "half_step", "quarter_step"]

exercise = lesson("07")

WHOLE = "the gradients must be those of the whole batch: divide by the number of its tokens that count"
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
    trial.leaves_the_model()


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
    y[-1, 0], y[0, :masked] = 0, -100  # token 0 counts like any other
    parts = [_gradients(model, x[i : i + rows], y[i : i + rows], "sum") for i in range(0, batch, rows)]
    expected_loss, expected = _gradients(model, x, y)
    model.zero_grad()
    limit = spend(floor, lambda: [_backward(model, x[:rows], y[:rows]) for _ in range(2)]).peak_bytes
    model.zero_grad()
    before = [one.clone() for one in (x, y, *model.parameters())]
    sizes: list[int] = []
    hook = model.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
    state = state_of(model)
    spent = spend(floor, lambda: case.call(model, x, y, rows, modifies=True))
    changed = left_changed(state, state_of(model))
    hook.remove()
    same = [torch.equal(*pair) for pair in zip(before, (x, y, *model.parameters()), strict=True)]
    case.instead(not all(same[:2]), "modifies x or y", "the caller still needs the batch")
    case.instead(not all(same[2:]), "takes a step", "the caller does, when the gradients are complete")
    case.instead(changed, f"leaves the model in another state: {changed}", "the next step would go another way")
    tokens = [int((part != -100).sum()) for part in y.split(rows)]
    _compare_gradients(case, model, spent.value, expected, parts, tokens, sum(sizes), batch)
    case.instead(not spent.flops, "computes on the CPU what belongs on the device", "the model is on the device")
    _compare_loss(case, spent.value, expected_loss, parts[-1][0] / tokens[-1])
    most = max(sizes, default=rows)
    what = f"takes {_rows(most)} at a time, and `rows` is {rows}"
    case.instead(most < rows, what, "each part pays all launches")
    model.zero_grad()
    over_budget(case, floor, spent, limit * 5 // 4, lambda: case.call(model, x, y, rows, modifies=True),
                f"{_rows(rows)} at a time: call backward for each part before the next one starts")  # fmt: skip
    case.instead(most > rows, what, "the caller chose as many rows as the memory holds")


def _rows(number: int) -> str:
    return f"{number} row{'' if number == 1 else 's'}"


def _compare_gradients(
    case: Case, model: nn.Module, loss: object, expected: list, parts: list, tokens: list[int], went: int, batch: int
) -> None:
    """Fail unless the model holds the gradients `expected`; `parts` holds the sums of the parts, `tokens` how many of
    each count. `went` of the `batch` rows went through the model."""
    got = [parameter.grad for parameter in model.parameters()]
    case.instead(any(grad is None for grad in got), "leaves parameters without a gradient",
                 "the caller steps after this: loss.backward() for each part, and no zero_grad after it")  # fmt: skip
    nan = isinstance(loss, torch.Tensor) and loss.isnan().any()
    case.instead(nan or any(grad.isnan().any() for grad in got), "the loss or its gradient is NaN",
                 "a part without tokens that count has no mean, 0 / 0: add up sums, divide by all")  # fmt: skip
    _name_the_division(case, got, parts, tokens)
    for (name, _), grad, right in zip(model.named_parameters(), got, expected, strict=True):
        other = not torch.allclose(grad, right, rtol=1e-5, atol=1e-9)
        case.instead(other and went != batch, f"{_rows(went)} went through the model, and the batch has {batch}",
                     "each row belongs to one part: x.split(rows)")  # fmt: skip
        case.instead(other, f"the gradient of {name} has other values", WHOLE, expected=right, got=grad)


def _compare_loss(case: Case, value: object, expected: torch.Tensor, last: torch.Tensor) -> None:
    """Fail unless the answer returned the loss of the whole batch; `last` is that of the last part."""
    case.instead(isinstance(value, float), "returns a Python number", "to read it, the host waits for the device")
    case.instead(isinstance(value, torch.Tensor) and value.requires_grad, "returns the loss with its graph",
                 "whoever keeps it keeps the graph: return loss.detach()")  # fmt: skip
    same = isinstance(value, torch.Tensor) and value.dim() == 0
    case.instead(same and torch.isclose(value.double(), last),
                 "returns the loss of the last part", "the mean over the whole batch was asked for")  # fmt: skip
    case.equal(value.double() if same else value, expected, rtol=1e-5, why="the mean over all tokens that count")


def _backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=reduction)
    loss.backward()
    return loss.detach()


def _gradients(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, reduction: str = "mean"
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return loss and gradients of the plain batch (x, y)."""
    model.zero_grad()
    loss = _backward(model, x, y, reduction)
    return loss, [parameter.grad for parameter in model.parameters()]


def _name_the_division(case: Case, got: list, parts: list, counts: list[int]) -> None:
    """Fail with how much a token of each part counts, unless that is 1 / all of them; `parts` holds their sums."""
    found = [(vector(grads), count) for (_, grads), count in zip(parts, counts, strict=True) if count]
    weights = part_weights(vector(got), [grads for grads, _ in found])
    shares = [weight * count for weight, (_, count) in zip(weights, found, strict=bool(weights))]
    number, whole = len(found), sum(counts)
    if not shares or number < 2 or all(abs(weight * whole - 1) < 1e-3 for weight in weights):
        return
    case.instead(all(abs(share - 1) < 1e-3 for share in shares), "divides by nothing",
                 f"{number} parts give gradients {number} times as large as the mean's")  # fmt: skip
    case.instead(all(abs(share * number - 1) < 1e-3 for share in shares), "takes the mean of the parts' means",
                 "a part with fewer tokens that count would weigh as much as a full one: divide sums by the number of "
                 "all")  # fmt: skip
    case.instead(not any(abs(share) > 1e-3 for share in shares[:-1]), "keeps the gradients of the last part only",
                 "backward adds to .grad: no zero_grad between the parts")  # fmt: skip
    words = ", ".join(f"1/{1 / weight:.4g}" if abs(weight) > 1e-6 else "0" for weight in weights)
    case.fail(f"a token of the {number} parts counts {words}; all should count 1/{whole}", WHOLE)


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
    why = "every part launches all kernels again: use fewer, larger parts (simulated time)"
    if trial.moved_bytes > trial.naive_bytes:
        why = "what goes to the host and comes back waits for the bus (simulated time)"
    case.instead(trial.times > 4,
                 f"the result is right, but it takes {trial.times:.1f} times the naive time, and 4 are allowed",
                 why)  # fmt: skip
    trial.leaves_the_model()
