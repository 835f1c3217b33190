"""The exercise of lesson 00: what an answer, a check and a hint are."""

import torch

from gpu_course.checks import Case, lesson
from gpu_course.common.probes import elsewhere

__all__ = ["double"]

exercise = lesson("00")


@exercise(
    title="Double on the device",
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


@double.checks
def _(case: Case) -> None:
    for x in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[0.5, -4.0]]).to(case.device), torch.arange(7)):
        case.equal(case.call(x, case.device), (x + x).to(case.device), why="twice `x`, of its type, on `device`")
    place = elsewhere(case.device)
    got = case.call(torch.ones(2), place)
    case.equal(got, 2 * torch.ones(2).to(place), why="the caller chooses the device, not a name inside the function")


@double.alternative("works where `x` is, then copies: the same bytes travel, but the device only receives the result")
def _(x, device):
    return (2 * x).to(device)
