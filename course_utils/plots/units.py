"""Formats of times, sizes and counts, in text and along an axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from course_utils import arguments
from simgpu import bytes_text, seconds_text

__all__ = ["axis_bytes", "axis_seconds", "bytes_text", "count_text", "plain_decades", "seconds_text"]

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axis import Axis


def count_text(n: float) -> str:
    """Return a count in the words of the field: "350 M" for 350 million, "7 B" for 7 billion (10⁹)."""
    arguments.number("n", n, finite=False)
    for factor, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if abs(n) >= factor:
            return f"{n / factor:.3g}{unit}"
    return f"{n:,.0f}"


def axis_bytes(axis: Axis) -> None:
    """Put the ticks of a logarithmic axis of bytes at powers of 1024 or 32, with their units."""
    _ticks(axis, 32, bytes_text)


def axis_seconds(axis: Axis) -> None:
    """Put the ticks of a logarithmic axis of seconds at powers of ten, written "10 µs", "1 ms"."""
    _ticks(axis, 10, lambda seconds: seconds_text(seconds).replace(".00", "").replace(".0 ", " "))


def plain_decades(axis: Axis) -> None:
    """Put the ticks of a logarithmic axis at powers of ten, written 0.01, 1, 1,000, and as 10ⁿ beyond that."""
    _ticks(axis, 10, lambda value: f"{value:,g}" if 1e-3 <= value <= 1e5 else f"$10^{{{round(math.log10(value))}}}$")


def _ticks(axis: Axis, base: int, text: Callable[[float], str]) -> None:
    """Put the ticks of a logarithmic axis at powers of `base`, written by `text`, and none between."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=base, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
