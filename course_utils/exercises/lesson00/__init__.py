"""The exercise of lesson 00: what an answer, a check and a hint are."""

import torch

from course_utils.checks import Case, lesson
from course_utils.exercises.common.places import IGNORED, elsewhere

__all__ = ["double"]

exercise = lesson("00")


@exercise(
    title="Double on the device",
    minutes=3,
    difficulty=1,
    hints=(
        "Two steps: bring `x` to the device, then multiply.",
        "`x.to(device)` returns a tensor on the device; `x` itself stays where it is.",
        "Return `2 * x.to(device)`.",
    ),
)
def double(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return twice `x`, on `device`."""
    on_device = x.to(device)  # a copy on the device, or `x` itself where it is there already
    return 2 * on_device  # a new tensor: the caller's `x` keeps its values


@double.checks
def _(case: Case) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    got = case.call(x, case.device)
    expected = (2 * x).to(case.device)
    if isinstance(got, torch.Tensor) and got.device != case.device:
        case.fail(
            f"the result is on {got.device}, expected on {case.device}",
            "`.to` does not move a tensor in place: it returns the one on the device",
        )
    case.instead(
        isinstance(got, torch.Tensor) and torch.equal(got.cpu(), x),
        "returns `x` on the device, but not doubled",
        expected=expected,
        got=got,
    )
    case.equal(got, expected)
    there = torch.tensor([[0.5, -4.0]]).to(case.device)
    case.equal(case.call(there, case.device), torch.tensor([[1.0, -8.0]]).to(case.device))
    many = torch.arange(7)
    case.equal(case.call(many, case.device), (many + many).to(case.device), why="a tensor of int64 stays one")
    place = elsewhere(case.device)
    elsewhere_too = case.call(x, place)
    case.instead(not isinstance(elsewhere_too, torch.Tensor) or elsewhere_too.device != place, *IGNORED)
