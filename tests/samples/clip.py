"""The exercise “Clip on the device”, written from docs/contributing/exercises.md alone."""

import torch

from gpu_course.checks import Case, exercise

HINTS = ("What limits a value from both sides?", "A tensor has a method for it.", "Its name is `clamp`: min, then max.")


@exercise(minutes=5, difficulty=1, hints=HINTS)
def clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return `x` with every value between -limit and limit, on the device of `x`."""
    return x.clamp(-limit, limit)


clip.exempt("a tensor of a few numbers shows it", "empty permuted scalar single sliced huge not_finite tied tiny")
clip.exempt("the text speaks of floats", "bfloat16 bool complex double half whole")
clip.exempt("a limit is a small number above 0", "limit number_large number_negative number_zero")
clip.exempt("there is one device, and nothing is made anew", "cpu elsewhere default_type")


@clip.checks
def _(case: Case) -> None:
    for values, limit in (([3.0, -0.5], 1.0), ([-4.0, 2.0, 0.0], 2.5), ([0.1, -9.0], 0.2)):
        got = case.call(torch.tensor(values).to(case.device), limit)
        case.fail_if(case.counts.host_reads, "lets the host read values", "it waits for the device each time")
        expected = [max(-limit, min(limit, value)) for value in values]
        case.equal(got, torch.tensor(expected).to(case.device))
