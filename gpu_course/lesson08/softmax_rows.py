"""The exercise “Softmax of a row”."""

import math

import torch

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import launch

triton, tl = kernelcheck.triton()


@exercise(
    minutes=9,
    difficulty=2,
    where="the CPU, with every access checked",
    hints=(
        "A masked load gives `other` where the mask is off. Which number changes neither a maximum nor a sum of "
        "powers?",
        "Three steps over one block: the maximum by tl.max, powers of what is left after subtracting it, their tl.sum.",
        "float('-inf') as `other` is never the maximum, and its power is 0. Divide, and store with the mask.",
    ),
)
def softmax_rows(x, out, columns, x_stride, BLOCK: tl.constexpr):
    """Store the softmax of each row to `out`; rows of x begin `x_stride` apart."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * x_stride + column, mask=inside, other=float("-inf"))
    powers = tl.exp(values - tl.max(values, axis=0))  # none above 1
    tl.store(out + row * columns + column, powers / tl.sum(powers, axis=0), mask=inside)


softmax_rows.exempt(KERNEL, "scalar empty permuted tiny zero tied formats default_type numbers second_call unchanged")


@softmax_rows.checks
def _(case: Case) -> None:
    for rows, columns, gap, block, shift in (
        (1, 4, 0, 8, 0.0),
        (3, 5, 0, 8, 0.0),
        (3, 5, 0, 8, -6.0),
        (3, 5, 0, 8, 200.0),
        (3, 5, 0, 8, -200.0),
        (4, 27, 6, 32, 1.0),
        (2, 1100, 0, 2048, 0.0),
        (3, 5, 0, 8, -3e4),
        (3, 5, 0, 8, 3e4),
        (3, 1, 2, 4, 1.0),
    ):
        x, out = (torch.randn(rows, columns + gap) + shift)[:, :columns], torch.full((rows, columns), math.nan)
        x[0, 0] -= shift  # alone near 0: neither a constant nor the mean is a maximum
        got, report = launch(case, (rows,), x, out, columns, columns + gap, block, out=1)
        case.equal(got, x.double().softmax(1).float(), rtol=1e-4, why=f"numbers near {shift:g}; each row adds up to 1")
        case.budget("bytes loaded", report.loaded_bytes, 4 * x.numel(), "a row stays in the block: read it once")
