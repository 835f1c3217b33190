"""Which training steps of a Transformer are right, and fit into a budget?"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from course_utils import data, models
from gpu_course.checks import Case, edit, lesson
from gpu_course.common.budgets import Floor, Spent, over_budget, spend
from gpu_course.common.left_out import TRAINING
from gpu_course.common.probes import named, state_of, unchanged

exercise = lesson("07")


@exercise(
    title="A step in a quarter of the memory",
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


@quarter_step.alternative("nothing is written twice; `accumulate` also looks for tokens that do not count")
def _(model, optimizer, x, y):
    optimizer.zero_grad()
    was, model.checkpointing = model.checkpointing, True
    loss = accumulate(model, x, y, len(x) // 2)
    model.checkpointing = was
    optimizer.step()
    return loss


quarter_step.leaves_out(
    TRAINING,
    "shapes half bfloat16 double bool complex huge tiny not_finite zero negative places default_type second_call "
    "unchanged evaluation frozen all_frozen two_groups double_model scalar_parameter",
)
quarter_step.leaves_out("it is another step of the same training", "other_input")


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
        state, call = state_of(model), functools.partial(case.call, model, optimizer, *batch, modifies=True)
        spent.append(spend(floor, call))
        moved_bytes += case.counts.bytes_d2h
        changed = any(not torch.equal(now.cpu(), before) for now, before in zip(batch, copies, strict=True))
        case.instead(changed, "modifies x or y", "the caller still needs the batch")
        case.instead(not steps, "takes no step with the given optimizer", "the weights change in optimizer.step()")
        why = "gradients of all parts add up in .grad: step once, after all"
        case.instead(len(steps) > 1, f"takes {len(steps)} steps", why)
        now = vector(model.parameters())
        if not torch.allclose(now, weights[number + 1], rtol=1e-4, atol=2e-6):
            _name_change(case, number, now, weights)
            return
        _compare_loss(case, spent[number].value, naive[number].value.to(case.device))
        fewer_flops = spent[number].flops < 0.99 * naive[number].flops
        why = "the budget is that of the device's memory, and the work stays there"
        case.instead(fewer_flops, "computes on the CPU what belongs on the device", why)
        unchanged(case, state, model, "the next step would go another way")
    at_once, again = max(model.went, default=0), "the" if model.again else "no"
    why = (
        f"{_rows(at_once)} went through the model at a time, and backward computed {again} blocks again; "
        "weights, gradients and the optimizer's state do not shrink with the batch"
    )
    limit_bytes = max(step.peak_bytes for step in naive) // 4
    over_budget(case, floor, max(spent, key=lambda step: step.peak_bytes), limit_bytes, call, why)
    times = sum(step.time_ms for step in spent) / sum(step.time_ms for step in naive)
    why = f"with {_rows(at_once)} at a time: every part launches all kernels again (simulated time)"
    if moved_bytes > naive[0].peak_bytes:
        why = "what goes to the host and comes back waits for the bus (simulated time)"
    case.instead(
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


class _Model(named(models.TransformerLM, "model")):
    """The same model; `watch` notes how many rows go through it at a time."""

    def watch(self) -> None:
        self.went, self.again = [], []
        self.blocks[0].register_forward_pre_hook(self._note)

    def _note(self, block: nn.Module, given: tuple[torch.Tensor]) -> None:
        backward = torch._C._current_graph_task_id() != -1  # a checkpoint runs the block again in there
        (self.again if backward else self.went).append(len(given[0]))


def _start(device: torch.device) -> tuple[_Model, torch.optim.SGD]:
    """Return a model with the same first weights each time, and its optimizer."""
    torch.manual_seed(0)
    model = _Model(256, 32, 2, 3, 64).to(device)
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


def _rows(number: int) -> str:
    return f"{number} row{'' if number == 1 else 's'}"


def _name_change(case: Case, number: int, now: torch.Tensor, weights: list[torch.Tensor]) -> None:
    """Fail with how the weights `now`, after step `number`, differ from `weights[number + 1]`."""
    if number:
        why = "something of the first step is left or lost: gradients, the optimizer's state, its settings"
        said = _lies(now - weights[1], weights[2] - weights[1])
        case.instead(True, "the first step is right, the second is not", why, **said)
        return
    mine, right = now - weights[0], weights[1] - weights[0]
    case.instead(
        not mine.any(),
        "takes a step, and no weight changes",
        "when optimizer.step() runs, the gradients must be in the model's parameters: backward before it, no "
        "zero_grad between the two",
    )
    _name_gradient(case, "the step", mine, right, _row_steps)


@functools.cache
def _row_steps() -> list[torch.Tensor]:
    """Return what each row of the first batch adds to the first naive step."""
    model, optimizer = _start(torch.device("cpu"))
    return [-optimizer.param_groups[0]["lr"] * row for row in _row_gradients(model, *_batches()[0])]


def _row_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Return what each row with tokens that count adds to the gradient of the batch's mean loss."""
    count = (y != -100).sum()
    gradients = []
    for part, target in zip(x.split(1), y.split(1), strict=True):
        if (target != -100).any():
            model.zero_grad()
            (_loss(model, part, target, "sum") / count).backward()
            gradients.append(vector(parameter.grad for parameter in model.parameters()))
    model.zero_grad()
    return gradients


def vector(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return all numbers of `tensors` in one float64 vector on the CPU."""
    return torch.cat([tensor.detach().cpu().double().flatten() for tensor in tensors])


def part_weights(total: torch.Tensor, parts: list[torch.Tensor]) -> list[float]:
    """Return the weights for which sum(weight * part) is `total` within 0.1 %, or nothing where there are none."""
    columns = torch.stack(parts, dim=1)
    weights = torch.linalg.lstsq(columns, total.unsqueeze(1)).solution
    left = (columns @ weights).squeeze(1) - total
    return weights.flatten().tolist() if left.norm() <= 1e-3 * total.norm() else []


def _lies(mine: torch.Tensor, right: torch.Tensor) -> dict[str, dict[str, float]]:
    """Return, as expected and got, how long `mine` is along `right` and across it, in lengths of `right`."""
    along = float(mine @ right / (right @ right))
    across = float((mine - along * right).norm() / right.norm())
    parts = {"length along the right one": along, "across it": across}
    return {
        "expected": {"length along the right one": 1.0, "across it": 0.0},
        "got": {name: float(f"{value:.3g}") for name, value in parts.items()},
    }


def _name_gradient(
    case: Case, what: str, mine: torch.Tensor, right: torch.Tensor, rows: Callable[[], list[torch.Tensor]]
) -> None:
    """Fail with how much each row counts in `mine`, which is not `right`: the sum of `rows()`."""
    shares = part_weights(mine, rows())
    if not shares or max(abs(share - 1) for share in shares) < 0.01:
        said = _lies(mine, right)
        near = "comes near" if said["got"]["across it"] < 0.05 else "is another one than"
        name = f"{what} {near} that of the whole batch"
        why = "it must be the same: all rows and tokens, no further terms, nothing rounded to 16 bits as under autocast"
        case.instead(True, name, why, **said)
        return
    most = max(map(abs, shares))
    shares = [0.0 if abs(one) < 0.01 * most else one for one in shares]
    lost = shares.count(0.0)
    if lost:
        name = f"{lost} of {_rows(len(shares))} {'does' if lost == 1 else 'do'} not count in {what}"
        why = "take all rows, and no zero_grad between the parts: it drops their gradients"
    elif max(shares) - min(shares) < 0.01 * most:
        name = f"{what} is {shares[0]:.3g} times that of the whole batch's mean"
        why = f"{_DIVIDE}, and let nothing else scale the gradient or the step"
    else:
        name, why = f"some rows count more than others in {what}", f"each row goes into one part: {_DIVIDE}"
    case.instead(True, name, why, expected=" ".join("1" for _ in shares), got=" ".join(f"{one:.3g}" for one in shares))


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=reduction)


_DIVIDE = "divide each part's sum by the number of all tokens that count"
quarter_step.mistake("takes the whole batch at once", "nothing is smaller than in the naive step", naive_step)


@exercise(
    title="Accumulate exactly",
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


accumulate.alternative(
    "divides once, at the end; every gradient is read and written once more",
    edit("""
        -        loss = F.cross_entropy(model(part).flatten(0, 1), target.flatten(), reduction="sum") / count
        +        loss = F.cross_entropy(model(part).flatten(0, 1), target.flatten(), reduction="sum")
        ...
        -    return total
        +    for parameter in model.parameters():
        +        parameter.grad /= count
        +    return total / count
    """),
)


@dataclasses.dataclass(frozen=True)
class _Batch:
    """So many rows of text, of whose first one `masked` places of 24 count nothing, and the model that learns them."""

    size: int
    masked: int = 0
    dtype: torch.dtype = torch.float64


accumulate.leaves_out("a text has rows and tokens", "scalar empty single permuted sliced")
accumulate.leaves_out(
    "inputs and tokens are ordinary numbers of the type that the model has",
    "huge tiny not_finite half bfloat16 double bool complex",
)
accumulate.leaves_out("the simulated GPU counts the memory, and no default is asked", "places default_type")
accumulate.leaves_out(
    "the text leaves frozen weights open, and says that there are no gradients at first",
    "frozen all_frozen old_gradients two_groups scalar_parameter",
)
accumulate.leaves_out("rows are a small number above 0", "number_zero number_negative number_large limit")
accumulate.leaves_out("it fills the gradients of the model that it is handed", "second_call unchanged")


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
    call = functools.partial(case.call, model, x, y, rows, modifies=True)
    spent = spend(floor, call)
    same = [torch.equal(old, one.cpu()) for old, one in zip(before, (x, y, *model.parameters()), strict=True)]
    case.instead(not all(same[:2]), "modifies x or y", "the caller still needs the batch")
    case.instead(not all(same[2:]), "takes a step", "the caller does, when the gradients are complete")
    unchanged(case, state, model, "the next step would go another way")
    grads = [parameter.grad for parameter in model.parameters()]
    missing = any(grad is None for grad in grads)
    why = "the caller steps after this: loss.backward() for each part, and no zero_grad after it"
    case.instead(missing, "leaves parameters without a gradient", why)
    if not missing:
        _compare_gradient(case, vector(grads), spent.value, each)
    _compare_loss(case, spent.value, loss.to(case.device))
    went = sum(model.went)
    most = max(model.went, default=rows)
    for when, name, why in (
        (went > batch.size, f"{_rows(went)} went through the model, and the batch has {batch.size}",
         "each row belongs to one part, and goes through once: x.split(rows)"),
        (not spent.flops, "computes on the CPU what belongs on the device", "the model is on the device"),
        (most != min(rows, batch.size), f"takes {_rows(most)} at a time, and `rows` is {rows}",
         "each part pays all launches" if most < rows else "the caller chose as many as the memory holds"),
    ):  # fmt: skip
        case.instead(when, name, why)
    again, why = lambda: (model.zero_grad(), call()), "call backward for each part before the next one starts"
    over_budget(case, floor, spent, limit * 5 // 4, again, f"{_rows(rows)} at a time: {why}")


def _masked(device: torch.device, batch: _Batch) -> tuple[_Model, torch.Tensor, torch.Tensor]:
    """Return a model with the same first weights each time, rows of text, and their targets."""
    torch.manual_seed(0)
    model = _Model(64, 16, 2, 1, 24).to(device, batch.dtype)
    x, y = data.text_batch(batch.size, 24, torch.Generator().manual_seed(1))
    x, y = (x % 64).to(device), (y % 64).to(device)
    y[-1, 0], y[0, : batch.masked] = 0, -100  # token 0 counts like any other
    return model, x, y


@functools.cache
def _whole(device: torch.device, batch: _Batch, rows: int, *rates: Any) -> tuple[list[torch.Tensor], torch.Tensor, int]:
    """Return what each row adds to the gradient, the whole batch's loss, and the peak in bytes of two parts.

    At these `rates` they are always the same, whatever the answer.
    """
    each = _row_gradients(*_masked(torch.device("cpu"), batch))
    floor, (model, x, y) = Floor(), _masked(device, batch)
    loss = _loss(model, x, y).detach().cpu()
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
    case.instead(nan, "the loss or its gradient is NaN", why)
    right = torch.stack(each).sum(0)
    if not nan and (got - right).norm() > 1e-4 * right.norm():  # .float() before the loss is right, 16 bits are not
        _name_gradient(case, "the gradient", got, right, lambda: each)


def _compare_loss(case: Case, value: object, expected: torch.Tensor) -> None:
    """Fail unless the answer returned the loss of the whole batch, of any floating format."""
    case.instead(isinstance(value, float), "returns a Python number", "to read it, the host waits for the device")
    why = "whoever keeps it keeps the graph: return loss.detach()"
    case.instead(isinstance(value, torch.Tensor) and value.requires_grad, "returns the loss with its graph", why)
    value = value.to(expected.dtype) if isinstance(value, torch.Tensor) and value.dim() == 0 else value
    why = "the mean loss of all tokens of the batch that count, before the step"
    case.equal(value, expected, rtol=1e-4, why=why)
