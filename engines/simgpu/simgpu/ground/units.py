"""Notation of times and sizes."""

import math

from simgpu.ground import arguments

__all__ = ["bytes_text", "seconds_text"]


def seconds_text(seconds: float) -> str:
    """Return a duration with three digits and its unit: "850 ns", "12.5 µs", "3.20 ms", "1.50 s"."""
    if not math.isfinite(arguments.number("seconds", seconds, finite=False)):
        return "unknown"
    if seconds == 0:
        return "0 s"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= factor * 0.9995:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{_three_digits(seconds * 1e9)} ns"


def bytes_text(n_bytes: float) -> str:
    """Return a size in binary units with at most three digits: "512 B", "64 KiB", "1.5 GiB"; a mean may be "0.44 B"."""
    arguments.number("n_bytes", n_bytes, finite=False)
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(n_bytes) >= 2**power * 0.9995:
            value = n_bytes / 2**power
            return f"{value:,.0f} {unit}" if value == round(value) else f"{_three_digits(value)} {unit}"
    return f"{n_bytes:.0f} B" if n_bytes == round(n_bytes) or abs(n_bytes) >= 10 else f"{n_bytes:.2g} B"


def _three_digits(value: float) -> str:
    """Return `value`, which lies from 0 to 10⁴, with three digits."""
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"
