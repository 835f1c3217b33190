"""The exercise “Layer norm, backwards”."""

import math

import torch
import torch.nn.functional as F

import kernelcheck
from gpu_course.checks import Case, edit, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import launch

triton, tl = kernelcheck.triton()


@exercise(
    title="Layer norm, backwards",
    minutes=18,
    difficulty=3,
    where="the CPU, with every access checked",
    hints=(
        "Compute mean, rstd = rsqrt(variance + eps) and the normalised row n again: that costs no bytes but those of "
        "x.",
        "With g = grad * weight, each input acts in three ways: by itself, through the mean, and through the variance.",
        "The gradient of x is rstd * (g - mean of g - n * mean of g * n). Both means go over the row.",
    ),
)
def layer_norm_backward(grad, x, weight, out, columns, eps, BLOCK: tl.constexpr):
    """Store the gradient of the layer norm for x; rows lie side by side."""
    column = tl.arange(0, BLOCK)
    inside = column < columns
    element = tl.program_id(0) * columns + column
    values = tl.load(x + element, mask=inside, other=0.0)
    centred = tl.where(inside, values - tl.sum(values, axis=0) / columns, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    n = centred * rstd
    g = tl.load(grad + element, mask=inside, other=0.0) * tl.load(weight + column, mask=inside, other=0.0)
    through_mean = tl.sum(g, axis=0) / columns
    through_variance = n * (tl.sum(g * n, axis=0) / columns)
    tl.store(out + element, rstd * (g - through_mean - through_variance), mask=inside)


layer_norm_backward.alternative(
    "one division a row: shorter, and the three ways are harder to see",
    edit("""
        -    through_mean = tl.sum(g, axis=0) / columns
        -    through_variance = n * (tl.sum(g * n, axis=0) / columns)
        -    tl.store(out + element, rstd * (g - through_mean - through_variance), mask=inside)
        +    through_mean = tl.sum(g, axis=0)
        +    through_variance = n * tl.sum(g * n, axis=0)
        +    tl.store(out + element, rstd / columns * (columns * g - through_mean - through_variance), mask=inside)
    """),
)


layer_norm_backward.exempt(
    KERNEL, "scalar empty permuted sliced huge tiny formats default_type numbers second_call unchanged"
)


@layer_norm_backward.checks
def _(case: Case) -> None:
    for rows, columns, block, shift in (
        (1, 4, 8, 1),
        (3, 5, 8, 1),
        (2, 27, 32, 1),
        (2, 27, 32, 3000),
        (1, 300, 512, 1),  # 8 bits do not hold these columns
        (130, 3, 4, 1),  # nor these rows
    ):
        grad, x, weight = torch.randn(rows, columns), 2 * torch.randn(rows, columns) + shift, torch.randn(columns)
        x[0, -1] = x[0, 0] = grad[-1, 0] = 0.0 if shift == 1 else shift  # numbers as any other
        exact, out = x.double().requires_grad_(), torch.full((rows, columns), math.nan)
        F.layer_norm(exact, (columns,), weight.double(), None, 0.1).backward(grad.double())
        got, report = launch(case, (rows,), grad, x, weight, out, columns, 0.1, block, out=3)
        near = 2e-5 + 1e-6 * shift  # float32 holds numbers near 3,000 less exactly
        case.equal(got, exact.grad.float(), rtol=near, atol=near, why="the gradient for x; nan stood there before")
        case.budget("bytes loaded", report.loaded_bytes, 12 * x.numel(), "grad, x and weight: each number once a row")
