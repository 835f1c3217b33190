"""Which mistake gives these intensities and bounds? What lesson 03 tries, and the formulas of common mistakes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from course_utils.exercises.common.mistakes import mistake_of

__all__ = ["BOUNDS", "MEASURED", "PRODUCTS", "bound_mistake", "intensity_mistake"]

# n, k, m, dtype: the smallest first.
PRODUCTS = (
    (4, 4, 4, torch.float32),
    (1, 1000, 1000, torch.float32),
    (1024, 1024, 1024, torch.float16),
    (32, 4096, 512, torch.bfloat16),
    (256, 64, 8, torch.float64),
    (100, 300, 200, torch.float8_e4m3fn),
)

BOUNDS = ("compute", "bandwidth", "overhead")

# FLOPs, bytes, ms, peak TFLOP/s, GB/s, and the bound. The peaks are those of a T4, an A100 and a slow processor.
MEASURED = (
    (2e9, 12e6, 0.3, 8.1, 320.0, "compute"),
    (1e6, 800e6, 3.0, 8.1, 320.0, "bandwidth"),
    (1e6, 12e3, 0.02, 8.1, 320.0, "overhead"),
    (3e11, 100e6, 1.2, 312.0, 1555.0, "compute"),
    (5e9, 200e6, 0.15, 312.0, 1555.0, "bandwidth"),
    (5e9, 200e6, 0.9, 312.0, 1555.0, "overhead"),
    (2e9, 12e6, 9.0, 8.1, 320.0, "overhead"),
    (1e9, 60e6, 0.21, 8.1, 320.0, "bandwidth"),
    (1.2e9, 40e6, 0.22, 8.1, 320.0, "compute"),
    (4e8, 9e6, 7.0, 0.1, 20.0, "compute"),
    (1e7, 80e6, 6.0, 0.1, 20.0, "bandwidth"),
    (1e7, 80e6, 60.0, 0.1, 20.0, "overhead"),
    (8.1e9, 32e6, 1.95, 8.1, 320.0, "compute"),
    (8.1e8, 320e6, 1.95, 8.1, 320.0, "bandwidth"),
    (8.1e9, 32e6, 2.5, 8.1, 320.0, "overhead"),
    (2.025e9, 64e6, 0.7, 8.1, 320.0, "overhead"),
)


def _product_bytes(n: int, k: int, m: int) -> int:
    return n * k + k * m + n * m


_ONE_ALONE = (
    "multiplies one matrix alone by the bytes of an element",
    "all three have such elements: add, then multiply",
)
_OUTPUT = ("takes one of the factors for the output", "(n, k) times (k, m) is (n, m)")

# name, why it matters, formula of n, k, m and the bytes of one element
_WRONG_INTENSITIES = (
    ("forgets the output", "the n × m results are written to memory, and that takes time too",
     lambda n, k, m, size: 2 * n * k * m / ((n * k + k * m) * size)),
    ("counts elements, not bytes", "memory moves bytes: a float32 has 4 of them, a float16 has 2",
     lambda n, k, m, size: 2 * n * k * m / _product_bytes(n, k, m)),
    ("counts a multiply-add as one operation", "a multiplication and an addition are two: 2 n k m",
     lambda n, k, m, size: n * k * m / (_product_bytes(n, k, m) * size)),
    ("multiplies by the bytes of an element", "a / b * c is (a / b) * c: put the bytes in brackets",
     lambda n, k, m, size: 2 * n * k * m / _product_bytes(n, k, m) * size),
    ("multiplies by the number of elements", "a / b * c is (a / b) * c: put the bytes in brackets",
     lambda n, k, m, size: 2 * n * k * m / size * _product_bytes(n, k, m)),
    (*_ONE_ALONE, lambda n, k, m, size: 2 * n * k * m / (n * k * size + k * m + n * m)),
    (*_ONE_ALONE, lambda n, k, m, size: 2 * n * k * m / (n * k + k * m + n * m * size)),
    (*_OUTPUT, lambda n, k, m, size: 2 * n * k * m / ((2 * n * k + k * m) * size)),
    (*_OUTPUT, lambda n, k, m, size: 2 * n * k * m / ((n * k + 2 * k * m) * size)),
    ("drops what is behind the point", "/ keeps it, // and int() do not",
     lambda n, k, m, size: 2 * n * k * m // (_product_bytes(n, k, m) * size)),
    ("rounds to whole numbers", "return it as it is; print it rounded",
     lambda n, k, m, size: round(2 * n * k * m / (_product_bytes(n, k, m) * size))),
    ("counts the output twice", "it is written once, and nothing of it is read",
     lambda n, k, m, size: 2 * n * k * m / ((_product_bytes(n, k, m) + n * m) * size)),
    ("counts one addition less", "each of the n m results takes k multiply-adds, counted as 2 k: 128 for 4, 4, 4",
     lambda n, k, m, size: (2 * k - 1) * n * m / (_product_bytes(n, k, m) * size)),
    ("takes 4 bytes for every type", "dtype.itemsize knows: a float16 has 2, a float64 has 8",
     lambda n, k, m, size: 2 * n * k * m / (_product_bytes(n, k, m) * 4)),
    ("divides bytes by FLOPs", "intensity is FLOPs for each byte",
     lambda n, k, m, size: _product_bytes(n, k, m) * size / (2 * n * k * m)),
    ("takes bits for bytes", "a byte has 8 bits; dtype.itemsize is in bytes",
     lambda n, k, m, size: 2 * n * k * m / (_product_bytes(n, k, m) * size * 8)),
    ("counts the output alone", "the two factors are read, and that takes time too",
     lambda n, k, m, size: 2 * n * k * m / (n * m * size)),
    ("reads the factors for every output again", "each matrix travels once; a good kernel keeps it close by",
     lambda n, k, m, size: 2 * n * k * m / ((2 * n * k * m + n * m) * size)),
    ("forgets the second factor", "the k × m matrix is read as well",
     lambda n, k, m, size: 2 * n * k * m / ((n * k + n * m) * size)),
    ("takes the matrices for square", "they are n × k, k × m and n × m",
     lambda n, k, m, size: 2 * n**3 / (3 * n * n * size)),
)  # fmt: skip


def intensity_mistake(answers: Sequence[float]) -> tuple[str, str]:
    """Return the name of the mistake that gives `answers` for `PRODUCTS` and why it matters, or two empty texts."""
    given = [(n, k, m, dtype.itemsize) for n, k, m, dtype in PRODUCTS]
    return mistake_of(answers, given, _WRONG_INTENSITIES, partial(math.isclose, rel_tol=1e-6))


def _judge(compute_ms: float, memory_ms: float, time_ms: float) -> str:
    """Return the bound by the rule of the lesson."""
    roof_ms = max(compute_ms, memory_ms)
    return "overhead" if time_ms > 2 * roof_ms else "compute" if compute_ms > memory_ms else "bandwidth"


def _swapped(bound: str) -> str:
    return {"compute": "bandwidth", "bandwidth": "compute"}.get(bound, bound)


# name, why it matters, rule of FLOPs, bytes, ms, TFLOP/s, GB/s
_WRONG_BOUNDS = (
    ("never says overhead", "a time far above the roof has another cause than the two: compare ms with ms",
     lambda f, b, t, p, g: _judge(f / p / 1e9, b / g / 1e6, 0.0)),
    ("calls overhead what bandwidth limits", "few FLOP/s are no overhead where the bytes arrive at nearly full rate",
     lambda f, b, t, p, g: "overhead" if t > 2 * f / p / 1e9 else _judge(f / p / 1e9, b / g / 1e6, t)),
    ("calls overhead what arithmetic limits", "few GB/s are no overhead where the arithmetic runs at nearly full rate",
     lambda f, b, t, p, g: "overhead" if t > 2 * b / g / 1e6 else _judge(f / p / 1e9, b / g / 1e6, t)),
    ("compares FLOPs with bytes", "a GPU does far more FLOPs than it moves bytes: divide each by its peak first",
     lambda f, b, t, p, g: _judge(f / p / 1e9, b / g / 1e6, t) if t > 2 * max(f / p / 1e9, b / g / 1e6)
     else _judge(f, b, 0.0)),
    ("compares FLOPs for each byte with TFLOP/s over GB/s", "1 TFLOP/s is 1000 GFLOP/s: such a ridge is far too low",
     lambda f, b, t, p, g: "overhead" if t > 2 * max(f / p / 1e9, b / g / 1e6) else _judge(f / b, p / g, 0.0)),
    ("swaps compute and bandwidth", "the part that takes longer is the bound",
     lambda f, b, t, p, g: _swapped(_judge(f / p / 1e9, b / g / 1e6, t))),
    ("takes GB for TB", "1 GB/s is 10⁶ bytes a millisecond, 1 TFLOP/s is 10⁹ FLOPs a millisecond",
     lambda f, b, t, p, g: _judge(f / p / 1e9, b / g / 1e9, t)),
    ("takes GFLOP for TFLOP", "1 TFLOP/s is 10⁹ FLOPs a millisecond, 1 GB/s is 10⁶ bytes a millisecond",
     lambda f, b, t, p, g: _judge(f / p / 1e6, b / g / 1e6, t)),
    ("takes GiB for GB", "peaks are decimal: 1 TFLOP/s is 10¹² operations a second, 1 GB/s is 10⁹ bytes a second",
     lambda f, b, t, p, g: _judge(f / p / 2**30, b / g / 2**20, t)),
    ("compares with the shorter part", "the longer of the two is the time at the roof",
     lambda f, b, t, p, g: "overhead" if t > 2 * min(f / p / 1e9, b / g / 1e6)
     else _judge(f / p / 1e9, b / g / 1e6, 0.0)),
    ("says overhead too late", "more than twice the time at the roof is overhead, not three times",
     lambda f, b, t, p, g: _judge(f / p / 1e9, b / g / 1e6, t / 1.5)),
    ("ignores the peaks that it is given", "each device has its own: those of the T4 are an example",
     lambda f, b, t, p, g: _judge(f / 8.1 / 1e9, b / 320 / 1e6, t)),
    ("adds the two parts", "arithmetic and memory traffic overlap: the roof is the larger of the two",
     lambda f, b, t, p, g: "overhead" if t > 2 * (f / p / 1e9 + b / g / 1e6) else _judge(f / p / 1e9, b / g / 1e6, 0)),
    ("always says overhead", "up to twice the time of the roof is near it; and compare ms with ms, not with s",
     lambda *given: "overhead"),
    ("always says compute", "the answer depends on the measurement", lambda *given: "compute"),
    ("always says bandwidth", "the answer depends on the measurement", lambda *given: "bandwidth"),
)  # fmt: skip


def bound_mistake(answers: Sequence[Any]) -> tuple[str, str]:
    """Return the name of the mistake that gives `answers` for `MEASURED` and why it matters, or two empty texts."""
    if not all(isinstance(answer, str) for answer in answers):
        return "", ""
    return mistake_of(answers, [row[:5] for row in MEASURED], _WRONG_BOUNDS, operator.eq)
