"""The exercise “A causal mask”."""

import torch

from gpu_course.checks import Case, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    minutes=5,
    difficulty=1,
    hints=(
        "Row t may look at the columns 0 to t: a lower triangle, the diagonal included.",
        "torch.ones makes a square on the device; one function keeps the lower triangle.",
        "The square takes dtype=torch.bool and device=device; .tril() keeps its lower triangle, the diagonal included.",
    ),
)
def causal_mask(time: int, device: torch.device) -> torch.Tensor:
    """Return a bool (time, time) tensor on `device`: True where a row may look."""
    return torch.ones(time, time, dtype=torch.bool, device=device).tril()  # itself and what came before


causal_mask.exempt(
    "a time is a small number, from 0 on, and no default is asked", "number_negative number_large limit default_type"
)


@causal_mask.checks
def _(case: Case) -> None:
    far, cpu = elsewhere(case.device), torch.device("cpu")
    for time, device in (*((time, case.device) for time in (3, 1, 6, 0, 33, 300)), (4, far), (3, cpu)):
        got = case.call(time, device)
        expected = torch.tensor([column <= row for row in range(time) for column in range(time)])
        expected = expected.bool().view(time, time)
        why = "numbers would be added to the scores; True and False say who may look"
        case.fail_if(isinstance(got, torch.Tensor) and got.dtype != torch.bool, "is not a bool tensor", why, got=got)
        comparable = isinstance(got, torch.Tensor) and got.layout == torch.strided and got.shape == expected.shape
        mine = got.cpu() if comparable else expected
        leaks, hides = (mine & ~expected).nonzero().tolist(), (expected & ~mine).nonzero().tolist()
        case.fail_if(
            leaks,
            f"leaks the future: row {leaks and leaks[0][0]} looks at place {leaks and leaks[0][1]}",
            "the model would see what it is to predict",
            expected=expected,
            got=got,
        )
        case.fail_if(
            hides,
            f"hides place {hides and hides[0][1]} from row {hides and hides[0][0]}",
            "a place may look at itself and at all before it",
            expected=expected,
            got=got,
        )
        sent = case.counts.bytes_h2d
        case.fail_if(sent, f"creates it on the CPU and copies {sent} bytes", "the device can write it: device=device")
        case.equal(got, expected.to(device), why="(time, time), on the `device` that is asked for")
