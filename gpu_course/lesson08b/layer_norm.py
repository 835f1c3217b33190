"""The exercise “Layer norm”."""

import math

import torch
import torch.nn.functional as F

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import launch

triton, tl = kernelcheck.triton()


@exercise(
    minutes=12,
    difficulty=2,
    where="the CPU, with every access checked",
    hints=(
        "Load the row once. Where the mask is off, 0 is harmless in the sum for the mean, but not after the mean has "
        "been subtracted.",
        "tl.where(inside, values - mean, 0.0) sets those places back to 0, and its squares add up to the variance.",
        "Divide both sums by `columns`. Then multiply by tl.rsqrt(variance + eps) and by the weight, and add the bias.",
    ),
)
def layer_norm(x, weight, bias, out, columns, x_stride, eps, BLOCK: tl.constexpr):
    """Store the layer norm of each row to `out`; rows of x begin `x_stride` apart."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)  # 0 - mean must not count below
    variance = tl.sum(centred * centred, axis=0) / columns
    scale = tl.load(weight + column, mask=inside) * tl.rsqrt(variance + eps)
    tl.store(out + row * columns + column, centred * scale + tl.load(bias + column, mask=inside), mask=inside)


layer_norm.exempt(KERNEL, "scalar empty permuted huge tiny formats default_type numbers second_call unchanged")


@layer_norm.checks
def _(case: Case) -> None:
    for rows, columns, gap, block, shift in (
        (1, 4, 0, 8, 0.0),
        (3, 5, 2, 8, 0.5),
        (2, 27, 0, 32, 3000.0),
        (1, 300, 0, 512, 0.0),  # 8 bits do not hold these columns
        (130, 3, 0, 4, 0.0),  # nor these rows
    ):
        x = (torch.randn(rows, columns + gap) + shift)[:, :columns]
        x[0, -1] = x[0, 0] = 0.0 if shift < 1 else shift  # a number of the row as any other
        weight, bias, out = torch.randn(columns), torch.randn(columns), torch.full((rows, columns), math.nan)
        arguments = x, weight, bias, out, columns, columns + gap, 0.1, block
        got, report = launch(case, (rows,), *arguments, out=3)
        expected = F.layer_norm(x.double(), (columns,), weight.double(), bias.double(), 0.1)
        near = 1e-5 + 1e-6 * shift  # float32 holds numbers near 3,000 less exactly
        case.equal(got, expected.float(), rtol=near, atol=near, why=f"numbers near {shift:g}; nan stood there before")
        case.budget("bytes loaded", report.loaded_bytes, 12 * x.numel(), "x, weight and bias: each number once a row")
