"""The exercise “Double on the device”."""

import math

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    minutes=4,
    difficulty=1,
    hints=(
        "Two steps: bring `x` to the device, then multiply.",
        "`x.to(device)` returns a tensor on the device; `x` itself stays where it is.",
        "Give a name to what `x.to(device)` returns, and return twice that.",
    ),
)
def double(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return twice `x`, on `device`."""
    on_device = x.to(device)  # a copy on the device, or `x` itself where it is there already
    return 2 * on_device  # a new tensor: the caller's `x` keeps its values


double.exempt("twice True is no number", "bool")


@double.checks
def _(case: Case) -> None:
    square = torch.tensor([[1.0, 2e4], [1e-6, -3.0]])
    for x in (  # "twice `x`": whatever its shape, its memory, its type
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor([[0.5, -4.0]]).to(case.device),
        torch.arange(7),
        torch.tensor(3.0),
        torch.ones(0, 2),
        edges.permuted(square),
        edges.sliced(square),
        torch.tensor([math.inf, 0.1], dtype=torch.float16),
        torch.tensor([0.1, 5.0], dtype=torch.bfloat16),
        torch.tensor([0.1], dtype=torch.float64),
        torch.tensor([1 + 2j]),
    ):
        device = edges.supporting(case.device, x)
        case.equal(case.call(x, device), (x + x).to(device), why="twice `x`, of its type, on `device`")
    for device in (elsewhere(case.device), torch.device("cpu")):  # "on `device`"
        got = case.call(torch.ones(2), device)
        case.equal(got, 2 * torch.ones(2).to(device), why="the caller chooses the device, not a name in the function")
    with edges.default_type():
        case.equal(case.call(square, case.device), 2 * square.to(case.device), why="twice `x`, of its type")
