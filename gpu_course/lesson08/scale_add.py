"""The exercise “A vector kernel with a mask”."""

import math

import torch

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import in_blocks, launch

triton, tl = kernelcheck.triton()


@exercise(
    minutes=8,
    difficulty=1,
    where="the CPU, with every access checked",
    hints=(
        "Which elements are this program's? It is number tl.program_id(0), and takes BLOCK of them, side by side.",
        "Elements n and beyond do not exist: compare, and hand the result as mask= to both loads and to the store.",
        "An address is the pointer plus the number of the element; in x neighbours lie x_stride apart, so multiply "
        "there, and there alone.",
    ),
)
def scale_add(x, x_stride, y, out, n, factor, BLOCK: tl.constexpr):
    """Store factor * x + y to `out`; elements of x lie `x_stride` apart."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = element < n
    scaled = factor * tl.load(x + element * x_stride, mask=inside)
    tl.store(out + element, scaled + tl.load(y + element, mask=inside), mask=inside)


scale_add.exempt(KERNEL, "scalar empty permuted huge tiny zero tied formats default_type second_call unchanged")
scale_add.exempt("sizes and strides are small numbers above 0, and a factor is any number", "number_large limit")


@scale_add.checks
def _(case: Case) -> None:
    for n, stride, block, factor in (
        (3, 1, 8, 2.0),
        (8, 1, 8, 0.5),
        (37, 1, 16, 2.0),
        (37, 3, 16, -1.5),
        (200, 2, 16, 3.0),  # more places than 8 bits count
        (1, 2, 16, 1.0),
        (5, 4, 2, 0.0),
    ):
        x, y, out = torch.randn(n, stride)[:, 0], torch.randn(n), torch.full((n,), math.nan)
        got, report = launch(case, (-(-n // block),), x, stride, y, out, n, factor, block, out=3)
        case.equal(got, (x.double() * factor + y.double()).float(), why="factor * x + y; nan stood there before")
        if block == 16 and n > 1:
            in_blocks(case, report, 3 * n)
