"""Which bits does each number format store for a value, how far off is it, and where does its range end?"""

import math
from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Choice, Explorer, Slider, Switch
from gpu_course.lesson03.explorers.formats import FORMATS, Format, Stored, store

__all__ = ["FORMATS", "Format", "Number", "Stored", "explore", "formats", "store"]

DIGITS = (1.0, 1.1, 1.2345678, 2.5, 3.1415926, 4.49, 5.0, 6.5504, 9.99, 0.0, math.inf, math.nan)
_COLOURS = (plots.RED, plots.GREEN, plots.BLUE)  # sign, exponent, mantissa
_BITS = max(fmt.bits for fmt in FORMATS)


@dataclass(frozen=True)
class Number:
    """One number in all formats."""

    asked: float
    stored: tuple[Stored, ...]


def formats(*, digits: float, power: int, negative: bool = False) -> Number:
    """Return `digits` x 10^`power`, with a minus sign if `negative`, as each format stores it.

    Infinity and NaN are taken.
    """
    size = float(f"{digits!r}e{power}") if math.isfinite(digits) else digits
    asked = math.copysign(size, -1 if negative else 1)
    return Number(asked, tuple(store(asked, fmt) for fmt in FORMATS))


def describe(n: Number) -> str:
    """Return the result in words."""
    parts = (f"{s.format.name} stores {s.value:.8g} ({_remark(s)})" for s in n.stored)
    return f"{n.asked:.8g}: {'; '.join(parts)}. Computed by PyTorch's own conversions, for tf32 by its definition."


def _remark(s: Stored) -> str:
    if s.kind in ("normal", "subnormal") and s.relative_error is not None:
        error = "exact" if s.relative_error == 0 else f"off by {s.relative_error:.1e}"
        return error if s.kind == "normal" else f"subnormal, {error}"
    return s.kind


def draw(n: Number) -> Any:
    """Return the picture: the bits of each format as boxes, and its range with the number in it."""
    titles = ("Sign, exponent, mantissa", "Range")
    figure, (left, right) = plots.new(titles, columns=2, widths=(7, 3), height_in=4.4)
    for height, stored in enumerate(reversed(n.stored)):
        _draw_bits(left, height, stored)
    left.set(xlim=(-5.4, _BITS), ylim=(-0.75, len(FORMATS) - 0.45), xticks=[], yticks=[])
    left.spines[:].set_visible(False)
    left.grid(False)
    _draw_ranges(right, n)
    return figure


def _draw_bits(axes: Any, height: int, stored: Stored) -> None:
    """Draw one row: name, boxes, and below them what is stored."""
    from matplotlib.patches import Rectangle

    x = 0
    for field, colour in zip(stored.fields, _COLOURS, strict=True):
        for bit in field:
            fill, ink = (colour, "white") if bit == "1" else ("white", colour)
            look = {"facecolor": fill, "edgecolor": colour, "linewidth": 0.8}
            axes.add_patch(Rectangle((x + 0.06, height - 0.16), 0.88, 0.46, **look))
            axes.text(x + 0.5, height + 0.06, bit, ha="center", va="center", fontsize=6.5, color=ink)
            x += 1
    axes.text(-0.4, height + 0.06, stored.format.name, ha="right", va="center", fontsize=9)
    spacing = "" if stored.spacing is None else f", next number {stored.spacing:.2g} away"
    text = f"{stored.value:.9g}: {_remark(stored)}{spacing}"
    axes.text(0.06, height - 0.22, text, va="top", fontsize=8, color=plots.MUTED)


def _draw_ranges(axes: Any, n: Number) -> None:
    """Draw each format's range, subnormal numbers pale, and a line at the number."""
    for height, fmt in enumerate(reversed(FORMATS)):
        low, normal, high = (math.log10(v) for v in (fmt.smallest_subnormal, fmt.smallest_normal, fmt.largest))
        axes.barh(height, normal - low, left=low, height=0.4, color=plots.SKY, alpha=0.45)
        axes.barh(height, high - normal, left=normal, height=0.4, color=plots.SKY)
        text, box = f"{fmt.smallest_subnormal:.1e} … {fmt.largest:.5g}", {"color": "white", "pad": 0.8}
        axes.text(0, height - 0.24, text, va="top", ha="center", fontsize=7.5, color=plots.MUTED, bbox=box)
    if n.asked and math.isfinite(n.asked):
        axes.axvline(math.log10(abs(n.asked)), color=plots.RED, linewidth=1.5)
    ticks = (-40, 0, 40)
    axes.set_xticks(ticks, [f"$10^{{{t}}}$" for t in ticks])
    axes.set(xlim=(-62, 62), ylim=(-0.75, len(FORMATS) - 0.45), yticks=[], xlabel="pale: subnormal")
    axes.grid(False, axis="y")


def explore() -> Explorer:
    """Return the explorer of lesson 03."""
    named = lambda n: f"{n:.8g}" if math.isfinite(n) else "NaN" if math.isnan(n) else "infinity"  # noqa: E731
    controls = [
        Slider("power", "Times ten to the", tuple(range(-46, 40)), 0),
        Choice("digits", "Number", DIGITS, 3.1415926, named),
        Switch("negative", "Negative"),
    ]
    return Explorer("what number formats store", formats, draw, describe, controls)
