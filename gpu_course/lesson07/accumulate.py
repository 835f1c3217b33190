"""The exercise “Accumulate exactly”."""

import dataclasses
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from course_utils import data
from gpu_course.checks import Case, exercise
from gpu_course.common.budgets import Floor, over_budget, spend
from gpu_course.common.probes import state_of, unchanged
from gpu_course.lesson07.steps import Model, compare_loss, name_gradient, row_gradients, rows_of, token_loss, vector


@exercise(
    minutes=12,
    difficulty=2,
    simulated=True,
    limit_s=20.0,
    hints=(
        "A mean of means is not the mean: the last part may have fewer rows, and parts differ in tokens that count.",
        'How many tokens of the whole y are not -100? Divide F.cross_entropy(…, reduction="sum") of a part by that.',
        "Count once, before the loop. Then for each pair of x.split(rows) and y.split(rows): forward, the sum of the "
        "losses over that count, backward; add up the detached losses.",
    ),
)
def accumulate(model: nn.Module, x: torch.Tensor, y: torch.Tensor, rows: int) -> torch.Tensor:
    """Leave in `model` the gradients of the whole mean loss, and return that loss."""
    count = (y != -100).sum()  # of the whole batch, not of the part
    total = torch.zeros((), device=x.device)
    for part, target in zip(x.split(rows), y.split(rows), strict=True):
        loss = F.cross_entropy(model(part).flatten(0, 1), target.flatten(), reduction="sum") / count
        loss.backward()
        total += loss.detach()
    return total


@dataclasses.dataclass(frozen=True)
class _Batch:
    """So many rows of text, of whose first one `masked` places of 24 count nothing, and the model that learns them."""

    size: int
    masked: int = 0
    dtype: torch.dtype = torch.float64


accumulate.exempt("a text has rows and tokens", "scalar empty single permuted sliced")
accumulate.exempt(
    "inputs and tokens are ordinary numbers of the type that the model has",
    "huge tiny not_finite half bfloat16 double bool complex",
)
accumulate.exempt("the simulated GPU counts the memory, and no default is asked", "places default_type")
accumulate.exempt(
    "the text leaves frozen weights open, and says that there are no gradients at first",
    "frozen all_frozen old_gradients two_groups scalar_parameter",
)
accumulate.exempt("rows are a small number above 0", "number_zero number_negative number_large limit")
accumulate.exempt("it fills the gradients of the model that it is handed", "second_call unchanged")


@accumulate.checks
def _(case: Case) -> None:
    for batch, rows in (
        (_Batch(5, dtype=torch.float32), 2),  # "the parts have 2, 2 and 1 rows"; 16 bits would show
        (_Batch(5, masked=7), 3),  # "divide by the number of the other tokens"
        (_Batch(3, masked=24), 1),  # "in some part all tokens may be skipped"
        (_Batch(2, masked=7), 4),  # all rows are one part
    ):
        _accumulated(case, batch, rows)


def _accumulated(case: Case, batch: _Batch, rows: int) -> None:
    """Check the parts of one batch against the batch as a whole."""
    rates = simgpu.settings()
    each, loss, limit = _whole(case.device, batch, rows, rates.costs, rates.spec)
    floor = Floor()  # without the model of the batch before
    model, x, y = _masked(case.device, batch)
    model.train(batch.size > 2)
    before = [one.detach().cpu().clone() for one in (x, y, *model.parameters())]  # on the device it would count
    model.watch()
    state = state_of(model)
    call = functools.partial(case.call, model, x, y, rows, modifies="gradients")
    spent = spend(floor, call)
    same = [torch.equal(old, one.cpu()) for old, one in zip(before, (x, y, *model.parameters()), strict=True)]
    case.fail_if(not all(same[:2]), "modifies x or y", "the caller still needs the batch")
    case.fail_if(not all(same[2:]), "takes a step", "the caller does, when the gradients are complete")
    unchanged(case, state, model, "the next step would go another way")
    grads = [parameter.grad for parameter in model.parameters()]
    missing = any(grad is None for grad in grads)
    why = "the caller steps after this: loss.backward() for each part, and no zero_grad after it"
    case.fail_if(missing, "leaves parameters without a gradient", why)
    if not missing:
        _compare_gradient(case, vector(grads), spent.value, each)
    compare_loss(case, spent.value, loss.to(case.device))
    went = sum(model.went)
    most = max(model.went, default=rows)
    for when, name, why in (
        (went > batch.size, f"{rows_of(went)} went through the model, and the batch has {batch.size}",
         "each row belongs to one part, and goes through once: x.split(rows)"),
        (not spent.flops, "computes on the CPU what belongs on the device", "the model is on the device"),
        (most != min(rows, batch.size), f"takes {rows_of(most)} at a time, and `rows` is {rows}",
         "each part pays all launches" if most < rows else "the caller chose as many as the memory holds"),
    ):  # fmt: skip
        case.fail_if(when, name, why)
    again, why = lambda: (model.zero_grad(), call()), "call backward for each part before the next one starts"
    over_budget(case, floor, spent, limit * 5 // 4, again, f"{rows_of(rows)} at a time: {why}")


def _masked(device: torch.device, batch: _Batch) -> tuple[Model, torch.Tensor, torch.Tensor]:
    """Return a model with the same first weights each time, rows of text, and their targets."""
    torch.manual_seed(0)
    model = Model(64, 16, 2, 1, 24).to(device, batch.dtype)
    x, y = data.text_batch(batch.size, 24, torch.Generator().manual_seed(1))
    x, y = (x % 64).to(device), (y % 64).to(device)
    y[-1, 0], y[0, : batch.masked] = 0, -100  # token 0 counts like any other
    return model, x, y


@functools.cache
def _whole(device: torch.device, batch: _Batch, rows: int, *rates: Any) -> tuple[list[torch.Tensor], torch.Tensor, int]:
    """Return what each row adds to the gradient, the whole batch's loss, and the peak in bytes of two parts.

    At these `rates` they are always the same, whatever the answer.
    """
    each = row_gradients(*_masked(torch.device("cpu"), batch))
    floor, (model, x, y) = Floor(), _masked(device, batch)
    loss = token_loss(model, x, y).detach().cpu()
    spent = spend(floor, lambda: _two_parts(model, x[:rows], y[:rows]))
    return each, loss, spent.peak_bytes


def _two_parts(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Go forward and back twice, with a name for each value, which then lives on while the next one is computed."""
    for _ in range(2):
        logits = model(x)
        numbers = logits.float()
        loss = F.cross_entropy(numbers.flatten(0, 1), y.flatten(), reduction="sum")
        loss.backward()


def _compare_gradient(case: Case, got: torch.Tensor, loss: object, each: list[torch.Tensor]) -> None:
    """Fail unless the gradient `got` is the sum of what the rows add, `each`."""
    nan = bool(got.isnan().any()) or (isinstance(loss, torch.Tensor) and bool(loss.isnan().any()))
    why = "a part without tokens that count has no mean, 0 / 0: add up sums, divide by all"
    case.fail_if(nan, "the loss or its gradient is NaN", why)
    right = torch.stack(each).sum(0)
    if not nan and (got - right).norm() > 1e-4 * right.norm():  # .float() before the loss is right, 16 bits are not
        name_gradient(case, "the gradient", got, right, lambda: each)
