"""The exercise “Bias and GELU in one kernel”."""

import math

import torch
import torch.nn.functional as F

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import in_blocks, launch

triton, tl = kernelcheck.triton()


@exercise(
    minutes=8,
    difficulty=2,
    where="the CPU, with every access checked",
    hints=(
        "One program, one row: the row is tl.program_id(0), and tl.arange(0, BLOCK) are its columns.",
        "Rows of x begin x_stride apart, those of `out` columns apart; every row takes the same `columns` numbers of "
        "bias.",
        "Turn both loads into float32 by .to(tl.float32) before you add, then the formula with tl.erf. Storing rounds.",
    ),
)
def bias_gelu(x, bias, out, columns, x_stride, BLOCK: tl.constexpr):
    """Store gelu(x + bias), each program a row; rows of x begin `x_stride` apart."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    z = tl.load(x + row * x_stride + column, mask=inside).to(tl.float32)
    z += tl.load(bias + column, mask=inside).to(tl.float32)
    tl.store(out + row * columns + column, 0.5 * z * (1 + tl.erf(z * 0.70710678)), mask=inside)


bias_gelu.exempt(KERNEL, "scalar empty permuted huge tiny zero bfloat16 double whole bool complex default_type")
bias_gelu.exempt(KERNEL, "numbers second_call unchanged")


@bias_gelu.checks
def _(case: Case) -> None:
    for rows, columns, gap, block in (
        (1, 4, 0, 8),
        (3, 5, 0, 8),
        (4, 27, 0, 32),
        (4, 27, 6, 32),
        (2, 1100, 0, 2048),
        (3, 1, 2, 1),
        (130, 2, 400, 2),  # more rows than 8 bits count, offsets that 16 bits do not hold
    ):
        x = (2 * torch.randn(rows, columns + gap) - 1.5).half()[:, :columns]
        x[-1] *= 8  # beyond what a polynomial for small numbers takes
        bias, out = torch.randn(columns).half(), torch.full((rows, columns), math.nan).half()
        got, report = launch(case, (rows,), x, bias, out, columns, columns + gap, block, out=2)
        exact, positive = F.gelu(x.double() + bias.double()), x.double() + bias.double() > 0
        case.equal(got, exact.half(), rtol=1.5e-3, atol=1e-6, why="gelu(x + bias); nan stood there before")
        once = "where x + bias is positive, only storing the result rounds it to 16 bits"
        case.equal(got[positive].double(), exact[positive], rtol=5e-4, atol=1e-6, why=once)  # half of the last bit
        case.budget("bytes loaded", report.loaded_bytes, 4 * x.numel(), "x and the bias: each number is needed once")
        if columns > 2:
            in_blocks(case, report, 3 * x.numel())
