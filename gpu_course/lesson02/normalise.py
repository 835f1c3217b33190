"""The exercise “Normalise on the device”."""

import math

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    minutes=10,
    difficulty=2,
    hints=(
        "x.mean(dim=0) and x.std(dim=0) have one number for each column, and broadcast against x.",
        "If all values of a column are equal, divide by 1 instead. They are equal if the smallest equals the largest.",
        "x.amin(dim=0) == x.amax(dim=0) is a mask of such columns. torch.where takes 1.0 there, and the std elsewhere.",
    ),
)
def normalise(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with each column at mean 0 and standard deviation 1, where `x` is."""
    std = x.std(dim=0)
    equal = x.amin(dim=0) == x.amax(dim=0)  # exact, where rounding may leave a deviation of 1e-9
    divisor = torch.where(equal, 1.0, std)  # a choice for each element, made on the device: no `if`
    return (x - x.mean(dim=0)) / divisor


normalise.exempt("of no rows there is no mean", "scalar empty")
normalise.exempt("the text speaks of NaN in the result alone", "not_finite")
normalise.exempt(
    "a deviation needs floating-point numbers, and more digits than 16 bits have", "half bfloat16 whole bool complex"
)
normalise.exempt("nothing is made, so no default is asked", "default_type")


@normalise.checks
def _(case: Case) -> None:
    table = torch.tensor([[-2.0, 0.0, 7.0], [2.0, 20.0, 7.0], [6.0, -30.0, 7.0]])
    for x in (
        torch.tensor([[1.0, 5.0], [3.0, 9.0]]),
        torch.tensor([[1.0, 5.0], [3.0, 5.0]]),
        torch.tensor([[1.0, 10.0, 7.0], [2.0, 20.0, 7.0], [6.0, 30.0, 7.0], [3.0, 80.0, 7.0]]),
        torch.tensor([[1e-9, 4e4], [3e-9, 1e4], [8e-9, 9e4]]),
        torch.tensor([[5.0], [5.0], [9.0], [5.0]]),
        torch.full((7, 1), 0.1),
        torch.tensor([[-1.0, 10000.0], [1.0, 10001.0], [-1.0, 10002.0]]),
        torch.tensor([[1e6], [1e6 + 1], [1e6 + 2]]),  # no two are equal, though `isclose` says so
        torch.tensor([[5.0, -3.0]]),  # "a column whose values are all equal": of one row, each
        edges.permuted(table),
        edges.sliced(table),
        1 + 1e-9 * table.double(),
    ):
        _normalised(case, x, edges.supporting(case.device, x))
    for device in (elsewhere(case.device), torch.device("cpu")):  # "where `x` is"
        _normalised(case, table, device)


def _normalised(case: Case, x: torch.Tensor, device: torch.device) -> None:
    got = case.call(edges.on(x, device))
    counts = case.counts
    why = f"{counts.bytes_d2h} bytes leave the device; the host waits for them"
    case.fail_if(counts.copies_d2h, "copies to the host", why)
    why = ".item(), print and an `if` on a value make the host wait: choose with torch.where instead"
    case.fail_if(counts.host_reads, "lets the host read a value", why)
    columns = [[float(value) for value in x[:, i]] for i in range(x.shape[1])]
    expected = torch.tensor([_standard(column) for column in columns], dtype=x.dtype).T.to(device)
    why = (
        "mean 0 and standard deviation 1; equal values become zeros, also where rounding leaves them a deviation above "
        "0"
    )
    case.equal(got, expected, rtol=1e-4, atol=1e-5, why=why)


def _standard(column: list[float]) -> list[float]:
    """Return what is right for one column, with Python's numbers."""
    if len(set(column)) == 1:
        return [0.0] * len(column)
    mean = math.fsum(column) / len(column)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in column) / (len(column) - 1))
    return [(value - mean) / std for value in column]
