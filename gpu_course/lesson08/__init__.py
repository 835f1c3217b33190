"""Exercises of lesson 08: kernels in Triton's language and in CUDA C++, and operators around them."""

import math

import torch
import torch.nn.functional as F

import kernelcheck
from gpu_course.checks import Case, lesson
from gpu_course.common.launching import in_blocks, launch
from gpu_course.common.left_out import KERNEL
from gpu_course.lesson08.block_sums import block_sums
from gpu_course.lesson08.compiling import kernels_written
from gpu_course.lesson08.operators import bias_gelu_backward, keep_rows_operator
from gpu_course.lesson08.tiles import matmul_tiles

__all__ = [
    "bias_gelu", "bias_gelu_backward", "block_sums", "keep_rows_operator", "kernels_written", "matmul_tiles",
    "scale_add", "softmax_rows",
]  # fmt: skip

triton, tl = kernelcheck.triton()
exercise = lesson("08")
WHERE = "the CPU, with every access checked"


@exercise(
    title="A vector kernel with a mask",
    minutes=8,
    difficulty=1,
    where=WHERE,
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


@scale_add.alternative("every program goes on by the whole grid: any number of programs is right, more code")
def _(x, x_stride, y, out, n, factor, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < n
        total = factor * tl.load(x + element * x_stride, mask=inside) + tl.load(y + element, mask=inside)
        tl.store(out + element, total, mask=inside)


scale_add.leaves_out(KERNEL, "scalar empty permuted huge tiny zero tied formats default_type second_call unchanged")
scale_add.leaves_out("sizes and strides are small numbers above 0, and a factor is any number", "number_large limit")


@scale_add.checks
def _(case: Case) -> None:
    for n, stride, block, factor in (
        (3, 1, 8, 2.0),
        (8, 1, 8, 0.5),
        (37, 1, 16, 2.0),
        (37, 3, 16, -1.5),
        (64, 2, 16, 3.0),
        (1, 2, 16, 1.0),
        (5, 4, 2, 0.0),
    ):
        x, y, out = torch.randn(n, stride)[:, 0], torch.randn(n), torch.full((n,), math.nan)
        got, report = launch(case, (-(-n // block),), x, stride, y, out, n, factor, block, out=3)
        case.equal(got, (x.double() * factor + y.double()).float(), why="factor * x + y; nan stood there before")
        if block == 16 and n > 1:
            in_blocks(case, report, 3 * n)


@exercise(
    title="Bias and GELU in one kernel",
    minutes=8,
    difficulty=2,
    where=WHERE,
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


@bias_gelu.alternative("a pointer moved to the row once: shorter addresses below")
def _(x, bias, out, columns, x_stride, BLOCK: tl.constexpr):
    x += tl.program_id(0) * x_stride
    out += tl.program_id(0) * columns
    column = tl.arange(0, BLOCK)
    z = tl.load(x + column, mask=column < columns).to(tl.float32) + tl.load(bias + column, mask=column < columns)
    tl.store(out + column, z * 0.5 * (1 + tl.erf(z / 1.41421356)), mask=column < columns)


bias_gelu.leaves_out(
    KERNEL, "scalar empty permuted huge tiny zero bfloat16 double whole bool complex default_type second_call unchanged"
)
bias_gelu.leaves_out(
    "sizes and strides are small numbers above 0, and a factor is any number",
    "number_zero number_negative number_large limit",
)


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


@exercise(
    title="Softmax of a row",
    minutes=9,
    difficulty=2,
    where=WHERE,
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


@softmax_rows.alternative("tl.where after the powers instead of `other`: for functions that -inf does not make 0")
def _(x, out, columns, x_stride, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0) * x_stride + column, mask=column < columns, other=-1e30)
    powers = tl.where(column < columns, tl.exp(values - tl.max(values, axis=0)), 0.0)
    tl.store(out + tl.program_id(0) * columns + column, powers / tl.sum(powers, axis=0), mask=column < columns)


softmax_rows.leaves_out(KERNEL, "scalar empty permuted tiny zero tied formats default_type second_call unchanged")
softmax_rows.leaves_out(
    "sizes and strides are small numbers above 0, and a factor is any number",
    "number_zero number_negative number_large limit",
)


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
