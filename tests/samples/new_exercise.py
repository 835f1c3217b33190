"""An exercise written from docs/contributing/exercises.md alone: reference, check and three mistakes."""

import torch

from gpu_course.checks import Case, edit, lesson

exercise = lesson("02")
HINTS = ("What limits a value from both sides?", "A tensor has a method for it.", "Its name is `clamp`: min, then max.")


@exercise(title="Clip on the device", minutes=5, difficulty=1, hints=HINTS)
def clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return `x` with every value between -limit and limit, on the device of `x`."""
    return x.clamp(-limit, limit)


@clip.checks
def _(case: Case) -> None:
    for values, limit in (([3.0, -0.5], 1.0), ([-4.0, 2.0, 0.0], 2.5), ([0.1, -9.0], 0.2)):
        got = case.call(torch.tensor(values).to(case.device), limit)
        case.instead(case.counts.host_reads, "lets the host read values", "it waits for the device each time")
        expected = [max(-limit, min(limit, value)) for value in values]
        case.equal(got, torch.tensor(expected).to(case.device))


clip.alternative(
    "a call more, and the same values",
    edit("""
        -    return x.clamp(-limit, limit)
        +    return torch.minimum(torch.maximum(x, -limit * torch.ones_like(x)), limit * torch.ones_like(x))
    """),
)
clip.mistake(
    "limits from above only",
    "values below -limit stay too small",
    edit("""
        -    return x.clamp(-limit, limit)
        +    return x.clamp(max=limit)
    """),
)
clip.mistake(
    "sets what is too large to 0",
    "it is to become the limit",
    edit("""
        -    return x.clamp(-limit, limit)
        +    return x * (x.abs() <= limit)
    """),
)


@clip.mistake("takes the absolute value", "a value below zero keeps its sign")
def _(x, limit):
    return x.abs().clamp(max=limit)
