"""The exercise “Windows without a copy”."""

import torch

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    title="Windows without a copy",
    minutes=10,
    difficulty=2,
    hints=(
        "Row i + 1 begins one element of x behind row i; so does column j + 1 behind column j.",
        "A tensor of length n has n - length + 1 windows. Both strides are the same number, the stride of x.",
        "as_strided takes the shape as a tuple, then the two strides as a tuple: x.stride(0), not 1.",
    ),
)
def windows(x: torch.Tensor, length: int) -> torch.Tensor:
    """Return a view of `x` whose row i holds the `length` elements from x[i] on."""
    step = x.stride(0)  # 1 only where the elements of x are neighbours in memory
    return x.as_strided((len(x) - length + 1, length), (step, step))


windows.exempt(
    "`x` has one dimension, and a window needs `length` elements of it",
    "scalar empty permuted number_zero number_negative number_large",
)
windows.exempt(
    "only where the elements lie matters, not which they are",
    "huge tiny not_finite negative tied bfloat16 bool complex default_type",
)


@windows.checks
def _(case: Case) -> None:
    edges.note("limit")  # a window as long as `x`, of 6 elements and of 1
    numbers = torch.arange(24.0, device=case.device)
    for x, length in (
        (numbers[:5], 2),
        (numbers[:7], 3),
        (numbers[:6], 6),
        (numbers[:4], 1),
        (numbers[10:19], 4),
        (numbers.view(8, 3)[:, 1], 3),
        (numbers[1::5], 2),
        (torch.arange(9, device=case.device), 5),
        (numbers[5:6], 1),
        (torch.arange(12.0, dtype=torch.float64, device=edges.supporting(case.device, torch.float64))[3::2], 3),
        (torch.arange(12.0, device=case.device).half()[1:], 3),
        (torch.arange(6.0, device=elsewhere(case.device))[1:], 2),
        (torch.arange(6.0)[1:], 2),
    ):
        got = case.call(x, length)
        expected = torch.stack([x[i : i + length] for i in range(len(x) - length + 1)])
        case.equal(got, expected, why="row i holds x[i] to x[i + length - 1]; `x` may step over elements of its memory")
        shared = got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        case.fail_if(not shared, "copies elements", "a view looks at the memory of `x` and takes none of its own")


@windows.alternative("PyTorch has it: no stride to get wrong, and the result is the same view")
def _(x, length):
    return x.unfold(0, length, 1)
