"""The exercise “Pick a device”."""

from collections.abc import Callable

import torch

from gpu_course.checks import Case, exercise


@exercise(
    minutes=5,
    difficulty=1,
    hints=(
        "Go through `preference` from its beginning, and stop at the first kind for which usable(kind) is True.",
        "A return inside the loop ends the function. So a line below the loop runs only when no kind was usable.",
        "Two returns: one inside the `if`, a torch.device made from the kind, and one below the loop, for the CPU.",
    ),
)
def pick_device(preference: list[str], usable: Callable[[str], bool]) -> torch.device:
    """Return the device of the first usable kind in `preference`, else the CPU."""
    for kind in preference:
        if usable(kind):
            return torch.device(kind)
    return torch.device("cpu")  # reached when no kind was usable: the program still runs


pick_device.exempt("it is handed a function, and each machine has another", "second_call")


@pick_device.checks
def _(case: Case) -> None:
    for preference, there, expected in (
        (["cuda"], ["cuda"], "cuda"),
        (["cuda"], [], "cpu"),
        (["cuda", "mps"], ["mps"], "mps"),
        (["cuda", "mps"], ["cuda"], "cuda"),
        (["xpu", "cuda", "mps"], ["cuda", "mps", "xpu"], "xpu"),
        (["xpu", "cuda"], ["mps"], "cpu"),
        (["cpu", "cuda"], ["cuda"], "cpu"),
        ([], ["cuda"], "cpu"),
        (["mps", "xpu", "cuda"], ["xpu", "cuda"], "xpu"),
        (["xpu", "hpu", "cuda", "mps"], ["mps"], "mps"),  # "the first kind that is usable", however late
        (["xpu", "cpu"], ["xpu"], "xpu"),  # the CPU is usable, and not liked best
        (["hpu", "cuda"], ["hpu", "cuda"], "hpu"),  # "some kinds of devices", not only those of this lesson
    ):
        usable = _machine(there)
        got = case.call(preference, usable)
        why = f"a string has no .type or .index: return torch.device({got!r})"
        case.fail_if(isinstance(got, str), "returns a string", why)
        where = "one" if expected in there else "no"
        why = "with device=None a tensor lands on the default device, without a word"
        case.fail_if(got is None, f"returns nothing where {where} kind is usable", why)
        wrong = isinstance(got, torch.device) and got != torch.device(expected)
        why = "a GPU can be available and fail at every kernel; `usable` has tried it"
        case.fail_if(wrong and not usable.asked, "never asks `usable`", why, expected=torch.device(expected), got=got)
        case.equal(got, torch.device(expected), why="the first kind in `preference` that is usable, else the CPU")


def _machine(kinds: list[str]) -> Callable[[str], bool]:
    """Return the function `usable` of a machine on which `kinds` and the CPU work; it keeps what it was asked."""

    def usable(kind: str) -> bool:
        usable.asked.append(kind)
        return kind in kinds or kind == "cpu"

    usable.asked = []
    usable.__name__ = "usable_is_true_for_" + "_and_".join([*kinds, "cpu"])
    return usable
