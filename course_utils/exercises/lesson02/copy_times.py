"""Which mistake gives these times of a copy? The calls that lesson 02 tries, and the formulas of common mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from course_utils.exercises.common.mistakes import mistake_of

__all__ = ["COPIES", "mistake_in"]

# Shape, dtype, GB/s, and the latency in µs: the smallest that shows each mistake first.
COPIES = (
    ((1000, 1000), torch.float32, 16.0, 10.0),
    ((1000, 1000), torch.float32, 16.0, 0.0),
    ((2000, 500, 3), torch.float16, 4.0, 20.0),
    ((64, 64), torch.float64, 25.0, 5.0),
    ((10_000_000,), torch.uint8, 12.5, 8.0),
)


def mistake_in(answers: Sequence[float]) -> tuple[str, str]:
    """Return the name of the mistake that gives `answers` for `COPIES` and why it matters, or two empty texts."""
    known = mistake_of(answers, COPIES, _WRONG_TIMES, _same)
    if known[0]:
        return known
    right = [us / 1e3 + math.prod(shape) * dtype.itemsize / (gbps * 1e6) for shape, dtype, gbps, us in COPIES]
    rounded = [[round(time, digits) for time in right] for digits in range(6)]
    if any(all(map(_same, times, answers)) for times in rounded):
        return "rounds the time", "the caller adds up thousands of small copies: return what you computed"
    return "", ""


_same = partial(math.isclose, rel_tol=1e-6)


# One line for the mistake's name and why it matters, one for what people compute: s(hape), d(type), b(andwidth), t.
# fmt: off
_WRONG_TIMES: tuple[tuple[str, str, Callable[..., float]], ...] = (
    ("takes bits for bytes", "a byte has 8 bits; GB/s with a capital B counts bytes",
     lambda s, d, b, t: t / 1e3 + math.prod(s) * d.itemsize * 8 / (b * 1e6)),
    ("takes GiB for GB", "1 GB is 10**9 bytes; 2**30 is 1 GiB, 7 % more",
     lambda s, d, b, t: t / 1e3 + math.prod(s) * d.itemsize / (b * 2**30) * 1e3),
    ("takes MiB for MB", "1 GB/s is 10**6 bytes a millisecond; 2**20 is 1 MiB, 5 % more",
     lambda s, d, b, t: t / 1e3 + math.prod(s) * d.itemsize / (b * 2**20)),
    ("counts elements, not bytes", "an element of float32 has 4 bytes: dtype.itemsize",
     lambda s, d, b, t: t / 1e3 + math.prod(s) / (b * 1e6)),
    ("takes 4 bytes for every type", "float16 has 2 bytes, float64 has 8: dtype.itemsize",
     lambda s, d, b, t: t / 1e3 + math.prod(s) * 4 / (b * 1e6)),
    ("forgets the latency", "a small copy is nearly all latency",
     lambda s, d, b, t: math.prod(s) * d.itemsize / (b * 1e6)),
    ("forgets the bytes", "a large copy is nearly all bytes over bandwidth",
     lambda s, d, b, t: t / 1e3),
    ("takes the larger part instead of the sum", "the bytes start when the latency is over: both times are paid",
     lambda s, d, b, t: max(t / 1e3, math.prod(s) * d.itemsize / (b * 1e6))),
    ("multiplies by the bandwidth", "a faster bus takes less time: divide by it",
     lambda s, d, b, t: t / 1e3 + math.prod(s) * d.itemsize * b / 1e6),
    ("takes microseconds for milliseconds", "1 ms is 1000 µs: divide latency_us by 1000",
     lambda s, d, b, t: t + math.prod(s) * d.itemsize / (b * 1e6)),
    ("takes microseconds for seconds", "1 s is 1,000,000 µs, and the result is in milliseconds",
     lambda s, d, b, t: t * 1e3 + math.prod(s) * d.itemsize / (b * 1e6)),
    ("adds the latency in seconds", "latency_us / 1e6 is in seconds; 1000 µs are 1 ms",
     lambda s, d, b, t: t / 1e6 + math.prod(s) * d.itemsize / (b * 1e6)),
    ("returns seconds", "the name ends in _ms: multiply by 1000",
     lambda s, d, b, t: t / 1e6 + math.prod(s) * d.itemsize / (b * 1e9)),
    ("returns microseconds", "the name ends in _ms: divide by 1000",
     lambda s, d, b, t: t + math.prod(s) * d.itemsize / (b * 1e3)),
    ("adds seconds to milliseconds", "bytes / (bandwidth_gbps * 1e9) is in seconds",
     lambda s, d, b, t: t / 1e3 + math.prod(s) * d.itemsize / (b * 1e9)),
    ("adds the sizes of the shape", "a shape of (2, 3) has 2 × 3 elements: math.prod(shape)",
     lambda s, d, b, t: t / 1e3 + sum(s) * d.itemsize / (b * 1e6)),
)
