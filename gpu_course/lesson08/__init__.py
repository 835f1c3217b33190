"""Exercises of lesson 08: kernels in Triton's language and in CUDA C++, and operators around them."""

import math

import torch
import torch.nn.functional as F

import kernelcheck
from gpu_course.checks import Case, lesson
from gpu_course.common.launching import launch
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
# fmt: off


@exercise(title="A vector kernel with a mask", minutes=8, difficulty=1, where=WHERE, hints=(
    "Which elements are this program's? It is number tl.program_id(0), and takes BLOCK of them, side by side.",
    "Elements n and beyond do not exist: compare, and hand the result as mask= to both loads and to the store.",
    "An address is the pointer plus the number of the element; in x neighbours lie x_stride apart, so multiply there, "
    "and there alone.",
))
def scale_add(x, x_stride, y, out, n, factor, BLOCK: tl.constexpr):
    """Store factor * x + y to `out`; elements of x lie `x_stride` apart."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    scaled = factor * tl.load(x + at * x_stride, mask=inside)
    tl.store(out + at, scaled + tl.load(y + at, mask=inside), mask=inside)


@scale_add.alternative("every program goes on by the whole grid: any number of programs is right, more code")
def _(x, x_stride, y, out, n, factor, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n
        total = factor * tl.load(x + at * x_stride, mask=inside) + tl.load(y + at, mask=inside)
        tl.store(out + at, total, mask=inside)


@scale_add.checks
def _(case: Case) -> None:
    for n, stride, block, factor in (
        (3, 1, 8, 2.0), (8, 1, 8, 0.5), (37, 1, 16, 2.0), (37, 3, 16, -1.5), (64, 2, 16, 3.0),
    ):
        x, y, out = torch.randn(n, stride)[:, 0], torch.randn(n), torch.full((n,), math.nan)
        got, _ = launch(case, (-(-n // block),), x, stride, y, out, n, factor, block, out=3)
        case.equal(got, (x.double() * factor + y.double()).float(), why="factor * x + y; nan stood there before")


_X, _Y, _STORE = "x + at * x_stride, mask=inside", "y + at, mask=inside", "(y + at, mask=inside), mask=inside)"
_AT = "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)"
_EACH = "each program takes the next BLOCK elements"
_END = "the last program reaches beyond the end, where other data lie, or none"
_BEHIND, _BEFORE = "the memory behind the end belongs to other data", "elements are numbered from 0 to n - 1"
scale_add.edits(
    ("has no mask where it loads x", _END, _X, "x + at * x_stride"),
    ("lets all elements beyond the end through the mask", _END, "inside = at < n", "inside = at >= 0"),
    ("has no mask where it loads y", _END, _Y, "y + at"),
    ("has no mask where it stores", _BEHIND, _STORE, "(y + at, mask=inside))"),
    ("lets element n through the mask", _BEFORE, "at < n", "at <= n"),
    ("leaves out the last element", _BEFORE, "at < n", "at < n - 1"),
    ("masks the address, not the number of the element", "with a stride they differ", "at < n", "at * x_stride < n"),
    ("takes the elements of x to lie side by side", "a column of a matrix has a stride", "at * x_stride", "at"),
    ("takes the stride of x for y too", "y lies side by side", "tl.load(y + at,", "tl.load(y + at * x_stride,"),
    ("takes the stride of x for the result too", "it has no gaps", "tl.store(out + at", "tl.store(out + at * x_stride"),
    ("gives all programs the same elements", _EACH, _AT, "tl.arange(0, BLOCK)"),
    ("does not multiply the program's number by BLOCK", _EACH, _AT, "tl.program_id(0) + tl.arange(0, BLOCK)"),
    ("starts at the second block", _BEFORE, "tl.program_id(0) *", "(tl.program_id(0) + 1) *"),
    ("forgets the factor", "factor * x + y", "factor * tl.load", "tl.load"),
    ("scales the sum", "the factor belongs to x alone", "scaled + tl.load", "scaled + factor * tl.load"),
    ("subtracts", "a sum was asked for", "scaled + tl", "scaled - tl"),
    ("computes with what stood in the result", "`out` may hold any numbers, even nan, and 0 times nan is nan",
     "tl.store(out + at, scaled +", "tl.store(out + at, 0 * tl.load(out + at, mask=inside) + scaled +"),
)


@exercise(title="Bias and GELU in one kernel", minutes=8, difficulty=2, where=WHERE, hints=(
    "One program, one row: the row is tl.program_id(0), and tl.arange(0, BLOCK) are its columns.",
    "Rows of x begin x_stride apart, those of `out` columns apart; every row takes the same `columns` numbers of bias.",
    "Turn both loads into float32 by .to(tl.float32) before you add, then the formula with tl.erf. Storing rounds.",
))
def bias_gelu(x, bias, out, columns, x_stride, BLOCK: tl.constexpr):
    """Store gelu(x + bias), each program a row; rows of x begin `x_stride` apart."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    z = tl.load(x + row * x_stride + at, mask=inside).to(tl.float32)
    z += tl.load(bias + at, mask=inside).to(tl.float32)
    tl.store(out + row * columns + at, 0.5 * z * (1 + tl.erf(z * 0.70710678)), mask=inside)


@bias_gelu.alternative("a pointer moved to the row once: shorter addresses below")
def _(x, bias, out, columns, x_stride, BLOCK: tl.constexpr):
    x += tl.program_id(0) * x_stride
    out += tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    z = tl.load(x + at, mask=at < columns).to(tl.float32) + tl.load(bias + at, mask=at < columns)
    tl.store(out + at, z * 0.5 * (1 + tl.erf(z / 1.41421356)), mask=at < columns)


@bias_gelu.checks
def _(case: Case) -> None:
    for rows, columns, gap, block in (
        (1, 4, 0, 8), (3, 5, 0, 8), (4, 27, 0, 32), (4, 27, 6, 32), (2, 1100, 0, 2048),
    ):
        x = (2 * torch.randn(rows, columns + gap) - 1.5).half()[:, :columns]
        bias, out = torch.randn(columns).half(), torch.full((rows, columns), math.nan).half()
        got, report = launch(case, (rows,), x, bias, out, columns, columns + gap, block, out=2)
        case.equal(got, F.gelu(x.double() + bias.double()).half(), rtol=1.5e-3, atol=1e-6,
                   why="gelu(x + bias); nan stood there before")
        case.budget("bytes loaded", report.loaded_bytes, 4 * x.numel(), "x and the bias: each number is needed once")


_LOAD_X, _LOAD_BIAS = "tl.load(x + row * x_stride + at, mask=inside)", "tl.load(bias + at, mask=inside)"
_HALF, _ROUNDED = ".to(tl.float32)", "each step rounds to 11 bits, and 1 + erf cancels where z is negative"
_WIDER = "BLOCK is a power of two, and wider than most rows"
_WRITTEN = "BLOCK is a parameter: for wider rows, a launch passes a larger one"
bias_gelu.edits(
    ("adds in 16 bits", "the sum is rounded to 11 bits before GELU sees it",
     f"{_LOAD_X}{_HALF}", _LOAD_X, f"z += {_LOAD_BIAS}{_HALF}", f"z = (z + {_LOAD_BIAS}){_HALF}"),
    ("rounds erf to 16 bits", _ROUNDED, "tl.erf(z * 0.70710678)", "tl.erf(z * 0.70710678).to(tl.float16)"),
    ("takes the bias of the row", "bias has one number a column", "tl.load(bias + at,", "tl.load(bias + row + 0 * at,"),
    ("takes the rows of x to lie side by side", "a part of a matrix has gaps", "row * x_stride", "row * columns"),
    ("takes the stride of x for the result", "its rows have no gaps", "out + row * columns", "out + row * x_stride"),
    ("takes one row for all programs", "each program has its own", "row, at = tl.program_id(0),", "row, at = 0,"),
    ("swaps rows and columns", "neighbours in a row lie side by side", "row * x_stride + at", "row + at * x_stride"),
    ("has no mask where it loads x", _WIDER, _LOAD_X, "tl.load(x + row * x_stride + at)"),
    ("has no mask where it loads the bias", _WIDER, _LOAD_BIAS, "tl.load(bias + at)"),
    ("has no mask where it stores", _BEHIND, "0.70710678)), mask=inside)", "0.70710678)))"),
    ("lets one column too many through the mask", "columns count from 0", "at < columns", "at <= columns"),
    ("forgets the bias", "gelu(x + bias)", _LOAD_BIAS, "0 * " + _LOAD_BIAS),
    ("forgets one half", "0.5 z (1 + erf(z / √2))", "0.5 * z", "z"),
    ("leaves out √2 inside erf", "0.5 z (1 + erf(z / √2))", "tl.erf(z * 0.70710678)", "tl.erf(z)"),
    ("takes another function, near GELU", "x · sigmoid(1.702 x) is an approximation",
     "0.5 * z * (1 + tl.erf(z * 0.70710678))", "z / (1 + tl.exp(-1.702 * z))"),
    ("forgets the factor z", "0.5 z (1 + erf(z / √2))", "0.5 * z * (1", "0.5 * (1"),
    ("has the width of a block written out", _WRITTEN, "tl.arange(0, BLOCK)", "tl.arange(0, 1024)"),
    ("reads x twice", "what is in the block costs nothing to use again", "1 + tl.erf(z * 0.70710678)",
     f"1 + tl.erf(({_LOAD_X}{_HALF} + {_LOAD_BIAS}) * 0.70710678)"),
)


@exercise(title="Softmax of a row", minutes=9, difficulty=2, where=WHERE, hints=(
    "A masked load gives `other` where the mask is off. Which number changes neither a maximum nor a sum of powers?",
    "Three steps over one block: the maximum by tl.max, powers of what is left after subtracting it, their tl.sum.",
    "float('-inf') as `other` is never the maximum, and its power is 0. Divide, and store with the mask.",
))
def softmax_rows(x, out, columns, x_stride, BLOCK: tl.constexpr):
    """Store the softmax of each row to `out`; rows of x begin `x_stride` apart."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * x_stride + at, mask=inside, other=float("-inf"))
    powers = tl.exp(values - tl.max(values, axis=0))  # none above 1
    tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=inside)


@softmax_rows.alternative("tl.where after the powers instead of `other`: for functions that -inf does not make 0")
def _(x, out, columns, x_stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0) * x_stride + at, mask=at < columns, other=-1e30)
    powers = tl.where(at < columns, tl.exp(values - tl.max(values, axis=0)), 0.0)
    tl.store(out + tl.program_id(0) * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@softmax_rows.checks
def _(case: Case) -> None:
    for rows, columns, gap, block, shift in (
        (1, 4, 0, 8, 0.0), (3, 5, 0, 8, 0.0), (3, 5, 0, 8, -6.0), (3, 5, 0, 8, 200.0), (3, 5, 0, 8, -200.0),
        (4, 27, 6, 32, 1.0), (2, 1100, 0, 2048, 0.0),
    ):
        x, out = (torch.randn(rows, columns + gap) + shift)[:, :columns], torch.full((rows, columns), math.nan)
        x[0, 0] -= shift  # alone near 0: neither a constant nor the mean is a maximum
        got, report = launch(case, (rows,), x, out, columns, columns + gap, block, out=1)
        case.equal(got, x.double().softmax(1).float(), rtol=1e-4, why=f"numbers near {shift:g}; each row adds up to 1")
        case.budget("bytes loaded", report.loaded_bytes, 4 * x.numel(), "a row stays in the block: read it once")


_OTHER = ', other=float("-inf"))'
_MAX, _SUM = "values - tl.max(values, axis=0)", "tl.sum(powers, axis=0)"
softmax_rows.edits(
    ("does not subtract the maximum", "exp overflows above 88, and is 0 for all below -103: 0 / 0", _MAX, "values"),
    ("fills with 0 where the mask is off", "exp(0 - maximum) counts in the sum, and 0 may be the maximum",
     _OTHER, ", other=0.0)"),
    ("leaves open what stands where the mask is off", "on a GPU, any number may stand there", _OTHER, ")"),
    ("subtracts the mean", "a number far above it still overflows",
     _MAX, "values - tl.sum(tl.where(inside, values, 0.0), axis=0) / columns"),
    ("reads each number twice", "what is in the block costs nothing to use again", _MAX,
     'values - tl.max(tl.load(x + row * x_stride + at, mask=inside, other=float("-inf")), axis=0)'),
    ("does not divide by the sum", "a row adds up to 1",
     (f"powers / {_SUM}", "powers"), (_SUM, "tl.max(powers, axis=0)")),
    ("divides by the number of columns", "a row adds up to 1", _SUM, "columns"),
    ("stores the powers' logarithm", "that is log_softmax", f"powers / {_SUM}", f"tl.log(powers) - tl.log({_SUM})"),
    ("goes down a column", "a row lies side by side", "row * x_stride + at", "row + at * x_stride"),
    ("takes the rows of x to lie side by side", "a part of a matrix has gaps", "row * x_stride", "row * columns"),
    ("takes the stride of x for the result", "its rows have no gaps", "out + row * columns", "out + row * x_stride"),
    ("takes one row for all programs", "each program has its own", "row, at = tl.program_id(0),", "row, at = 0,"),
    ("has no mask where it loads", _WIDER, f", mask=inside{_OTHER}", ")"),
    ("has no mask where it stores", _BEHIND, f"{_SUM}, mask=inside)", f"{_SUM})"),
    ("lets one column too many through the mask", "columns count from 0", "at < columns", "at <= columns"),
    ("has the width of a block written out", _WRITTEN, "tl.arange(0, BLOCK)", "tl.arange(0, 1024)"),
)
