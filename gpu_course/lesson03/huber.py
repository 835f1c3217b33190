"""The exercise “Remove a branch and a loop”."""

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    minutes=13,
    difficulty=2,
    hints=(
        "Work on all elements at once: error = (prediction - target).abs() has their shape.",
        "torch.where(condition, a, b) takes both branches, and chooses for each element on the device.",
        "torch.where with the condition error <= delta and the two formulas of huber_slow; then the mean over dim=1.",
    ),
)
def huber(prediction: torch.Tensor, target: torch.Tensor, delta: float) -> torch.Tensor:
    """Return the mean Huber loss of each row, shape (rows,), with no loop or branch."""
    error = (prediction - target).abs()
    each = torch.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta))  # both branches, then a choice
    return each.mean(dim=1)


_ALLOWED_OPERATORS = 16


huber.exempt("a row has elements, else it has no mean", "scalar")
huber.exempt("the text speaks of numbers alone", "not_finite complex bool whole")
huber.exempt("the square of a loss leaves the range of 16 bits", "half bfloat16")
huber.exempt("delta is an error, and so above 0", "number_zero number_negative number_large")
huber.exempt("nothing is made, so no default is asked", "default_type")


@huber.checks
def _(case: Case) -> None:
    few = None
    for rows, columns, delta in ((2, 3, 1.0), (1, 3, 0.5), (40, 5, 0.25), (3, 60, 2.0)):
        prediction, target = torch.randn(rows, columns) * 3, torch.randn(rows, columns)
        prediction[0, 0] = target[0, 0] - 2 * delta  # an error below zero, far out
        prediction[-1, -1], target[-1, -1] = 0.5 + delta, 0.5  # an error of exactly delta
        prediction[-1, 0] = target[-1, 0]  # an error of exactly 0
        learns = rows == 3  # in the last case
        leaf, other = (one.to(case.device).requires_grad_(learns) for one in (prediction, target))
        got = case.call(leaf, other, delta)
        counts = case.counts
        case.fail_if(isinstance(got, list), "returns a list", "the numbers stay on the device, in a tensor", got=got)
        _no_branch(case)
        few = counts.operators if few is None else few
        why = (
            f"{counts.operators} operators for shape {(rows, columns)}, {few} for (2, 3): the host hands the "
            "device each one apart, and each costs a launch"
        )
        case.fail_if(counts.operators > few + 10, "a loop is left", why)
        case.equal(
            got,
            torch.tensor(
                [_huber_of_row(*pair, delta) for pair in zip(prediction.tolist(), target.tolist(), strict=True)]
            ).to(case.device),
            rtol=1e-4,
            atol=1e-5,
        )
        if learns:
            why = "a loss is there to be trained on: .tolist(), .item(), .detach() and torch.no_grad() cut it"
            case.fail_if(not got.requires_grad, "cuts the gradient", why)
            case.backward(got)
            slope = (prediction - target).clamp(-delta, delta) / columns
            why = "gradients must flow back to `prediction` and to `target`, as in the loop"
            case.fail_if(leaf.grad is None or other.grad is None, "cuts the gradient of one input", why)
            why = "the slope of a root or of a division by the error is infinite there, and 0 times it is NaN"
            case.fail_if(leaf.grad.isnan().any(), "its gradient is NaN where the error is 0", why)
            for one, right in ((leaf, slope), (other, -slope)):
                case.equal(one.grad, right.to(case.device), rtol=1e-4, why="the loss is right, its gradient is not")
    edges.note("limit")  # an error of exactly delta
    case.budget("operators", case.counts.operators, _ALLOWED_OPERATORS, "each one is a launch")
    _any_tensors(case)


def _any_tensors(case: Case) -> None:
    """Fail unless the answer computes the same whatever the memory, the size, the type and the place."""
    sharp = torch.tensor([[0.0, 2e4, -3e4], [1e-6, -3.0, 0.0]])
    for prediction, device in (
        (edges.permuted(sharp), case.device),
        (edges.sliced(sharp), case.device),
        (sharp.double() + 1e-9, case.device),
        (torch.ones(0, 3), case.device),
        (torch.ones(2, 1), case.device),
        (sharp, elsewhere(case.device)),
        (sharp, torch.device("cpu")),
    ):
        device = edges.supporting(device, prediction)
        target = torch.linspace(-1, 1, prediction.numel(), dtype=prediction.dtype).view(prediction.shape)
        got = case.call(edges.on(prediction, device), target.to(device), 0.5)
        rows = zip(prediction.tolist(), target.tolist(), strict=True)
        expected = torch.tensor([_huber_of_row(*row, 0.5) for row in rows], dtype=prediction.dtype).to(device)
        exact = prediction.dtype == torch.float64
        case.equal(got, expected, rtol=1e-12 if exact else 1e-5, atol=0 if exact else 1e-5)


def _huber_of_row(prediction: list[float], target: list[float], delta: float) -> float:
    """Return the mean Huber loss of one row, with Python's numbers."""
    errors = [abs(p - t) for p, t in zip(prediction, target, strict=True)]
    return sum(0.5 * e * e if e <= delta else delta * (e - 0.5 * delta) for e in errors) / len(errors)


def _no_branch(case: Case) -> None:
    """Fail where the answer looked at values on the host."""
    counts = case.counts
    why = f"{counts.bytes_d2h} bytes leave the device; the host waits for them"
    case.fail_if(counts.copies_d2h, "copies to the host", why)
    reads = counts.host_reads
    masked = sum(counts.by_operator[name] for name in ("index", "index_put", "index_put_", "nonzero", "masked_select"))
    why = (
        "x[mask] must count what is true before it can make its result, and the host waits for that: torch.where keeps "
        "the shape"
    )
    case.fail_if(reads and masked, "picks elements by a mask whose number nobody knows", why)
    why = f"{reads} time(s) the host waits for the device: for `if`, `while`, .item() or .tolist()"
    case.fail_if(reads, "a branch is left: the host reads a value", why)
