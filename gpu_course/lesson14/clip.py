"""The exercise “A function without breaks”."""

import math

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.tracing import Alone, breaks, traced


@exercise(
    minutes=8,
    difficulty=2,
    where="any machine: graphs of CPU tensors",
    limit_s=30.0,  # tracing takes much longer than computing
    hints=(
        "Which lines need a number in Python, or print? Each can be done on the device, or left out.",
        "Keep the mean and the length as tensors: drop `.item()`. In place of the `if`, compute a factor that is 1 "
        "where x is short enough.",
        "length.clamp(min=limit) is never below limit. limit divided by it is at most 1, and exactly 1 for a short x.",
    ),
)
def clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return x minus its mean, shortened to the length `limit` if it is longer."""
    centred = x - x.mean()
    length = centred.norm()
    return centred * (limit / length.clamp(min=limit))  # the factor is 1 where x is short enough


clip.exempt("the text speaks of float32", "formats", "surroundings")
clip.exempt("an empty x has no mean", "empty")
clip.exempt("inf has no length to shorten", "not_finite")
clip.exempt("the text says that limit is above 0", "number_zero", "number_negative")
clip.exempt("no length of float32 numbers in a test is that large", "number_large")
clip.exempt("the result is where x is, and that is one device", "elsewhere")


def _clipped(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return what the text says, number by number."""
    numbers = x.double().flatten().tolist()
    mean = math.fsum(numbers) / len(numbers)
    length = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers))
    factor = limit / length if length > limit else 1.0
    return torch.tensor([(number - mean) * factor for number in numbers]).view(x.shape)


_SHORT, _LONG = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([9.0, -4.0, 1.0])


@clip.checks
def _(case: Case) -> None:
    square = torch.tensor([[2e4, -3.0], [1e-5, 0.0]])
    for x, limit in (
        (_SHORT, 2.0),
        (_LONG, 2.0),
        (torch.tensor([1.0, -1.0, 1.0, -1.0]), 2.0),  # exactly as long as the limit
        (torch.full((2, 3), 5.0), 0.5),  # equal numbers: a length of 0
        (torch.tensor(4.0), 1.0),
        (torch.tensor([[3.0]]), 1.0),
        (edges.permuted(square), 7.0),
        (edges.sliced(square), 1e6),
        (torch.tensor([0.4, -0.4, 0.4, -0.4]), 0.5),  # longer than the limit, and shorter than 1
        (1e-4 * _LONG, 1e-4),
    ):
        got = case.use(Alone(case.answer, case.task.name), x, limit)
        case.equal(got, _clipped(x, limit), rtol=1e-4, atol=1e-4 * min(limit, 1), why=f"limit is {limit:g}")
    edges.note("limit", "second_call")
    for x, seen in ((_SHORT, "is short enough"), (_LONG, "is too long")):
        lines = breaks(case, x, 2.0)
        why = (
            "there the host must wait for a number, or do something that no graph can hold: let tensors carry the "
            "number, and compute what the `if` decides"
        )
        case.fail_if(lines, f"the values are right, but where x {seen}, the graph breaks at: {'; '.join(lines)}", why)
    graphs = traced(case, (_SHORT, 2.0), (_LONG, 2.0))
    case.fail_if(not graphs, "nothing of it is compiled", "the compiler was told to leave the function alone")
    why = "a decision that Python takes is a guard: when it changes, the function is compiled again"
    case.fail_if(len(graphs) > 1, "is compiled again for another x of the same shape", why)
