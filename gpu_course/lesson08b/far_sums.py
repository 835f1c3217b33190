"""The exercise “Rows far apart”."""

import math

import torch

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
        "tl.program_id(0) and x_stride are numbers of 32 bits, and so is their product. Where does it end?",
        "A product of 32-bit numbers is cut to 32 bits before anything else happens to it: convert a factor, not "
        "the product.",
        "row = tl.program_id(0).to(tl.int64) makes every offset that follows one of 64 bits.",
    ),
)
def far_sums(x, out, columns, x_stride, BLOCK: tl.constexpr):
    """Store the sum of each row of x to `out`; rows begin `x_stride` apart."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    values = tl.load(x + row * x_stride + column, mask=column < columns, other=0.0)
    tl.store(out + row, tl.sum(values, axis=0))


far_sums.exempt(KERNEL, "scalar empty permuted huge tiny formats default_type numbers second_call unchanged")


@far_sums.checks
def _(case: Case) -> None:
    for rows, columns, gap, block in ((1, 4, 0, 8), (3, 5, 2, 8), (130, 1, 1, 1)):  # more rows than 8 bits count
        x, out = torch.randn(rows, columns + gap)[:, :columns], torch.full((rows,), math.nan)
        got, report = launch(case, (rows,), x, out, columns, columns + gap, block, out=1)
        case.equal(got, x.double().sum(1).float(), rtol=1e-4, atol=1e-5, why="the sum of each row")
        if columns > 1:
            in_blocks(case, report, x.numel() + rows)
    for rows, apart in ((2, 2**31 - 8), (3, 1_500_000_000), (4, 1_500_000_000)):
        x = kernelcheck.Addresses((rows, 5), (apart, 1))  # no machine here has room for it
        _, report = launch(case, (rows,), x, torch.zeros(rows), 5, apart, 8, out=1)
        read = torch.from_numpy(report.touched["x"][rows - 1, 0, 0])
        case.equal(read, (rows - 1) * apart + torch.arange(5), why=f"elements of x that program {rows - 1} reads")
