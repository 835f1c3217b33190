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


double.edits(
    ("the result is not on `device`",
     "`x.to(device)` returns a tensor on the device and leaves `x` where it was: go on with what it returns",
     "on_device = x.to(device)", "x.to(device)", "2 * on_device", "2 * x"),
    ("returns `x` on the device, but not doubled", "the task is two steps: move, and multiply",
     "2 * on_device", "on_device"),
    ("turns whole numbers into floats", "a tensor of int64 should stay one: multiply by 2, not by 2.0",
     "2 * on_device", "2.0 * on_device"),
)  # fmt: skip


@double.alternative("works where `x` is, then copies: the same bytes travel, but the device only receives the result")
def _(x, device):
    return (2 * x).to(device)
