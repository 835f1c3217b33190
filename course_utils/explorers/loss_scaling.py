"""Which share of the gradients does fp16 lose, and what does it help to multiply the loss by a scale?

Questions for the reader: (1) Gradients of median 10⁻⁷: what share is lost without a scale, and with 2¹⁶, at which
GradScaler begins? (2) Raise the scale until steps are skipped: which gradients decide how far it can go, and why has
bf16 no need of a scale?
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from course_utils import plots
from course_utils.base import arguments
from course_utils.explorers import Choice, Explorer, Slider
from course_utils.explorers.formats import FORMATS, Format

__all__ = ["Scaled", "explore", "scaling"]

_FORMATS = {fmt.name: fmt for fmt in FORMATS if fmt.name in ("fp16", "bf16", "fp8 e5m2")}
_SCALES = tuple(2**n for n in range(0, 33, 2))


@dataclass(frozen=True)
class Scaled:
    """Absolute gradients whose logarithm is normally distributed (an assumption), times a scale, stored in a format."""

    fmt: Format
    median: float
    decades: float  # standard deviation of the logarithm to base ten
    scale: float
    gradients: int

    @property
    def edges(self) -> tuple[float, float, float]:
        """Below the first a value becomes zero, below the second it is subnormal, from the third on infinite."""
        fmt = self.fmt  # each edge is where rounding changes: in the middle between two numbers
        half = fmt.smallest_subnormal / 2
        return half, fmt.smallest_normal - half, fmt.largest + fmt.spacing(fmt.largest) / 2

    def below(self, value: float) -> float:
        """Return the share of scaled gradients below `value`, from 0 to 1."""
        distance = (math.log10(value) - math.log10(self.median * self.scale)) / self.decades
        return 0.5 * math.erfc(-distance / math.sqrt(2))

    @property
    def lost(self) -> float:
        """Share that becomes zero."""
        return self.below(self.edges[0])

    @property
    def subnormal(self) -> float:
        """Share that keeps fewer bits."""
        return self.below(self.edges[1]) - self.lost

    @property
    def infinite(self) -> float:
        """Share that becomes infinite."""
        distance = (math.log10(self.edges[2]) - math.log10(self.median * self.scale)) / self.decades
        return 0.5 * math.erfc(distance / math.sqrt(2))

    @property
    def skipped(self) -> float:
        """Chance that at least one gradient is infinite, in which case GradScaler skips the step."""
        if self.infinite >= 1.0:
            return 1.0
        return -math.expm1(self.gradients * math.log1p(-self.infinite))


def scaling(*, fmt: str, median: float, decades: float, scale: float, gradients: int) -> Scaled:
    """Return what happens to gradients of this `median` and spread, in decades, in `fmt` after times `scale`.

    Independent gradients with a normally distributed logarithm are an assumption; those of a real network have other
    tails. Raises TypeError or ValueError that names a wrong argument.
    """
    if fmt not in tuple(_FORMATS):
        raise ValueError(f"fmt is {fmt!r}, it may be one of: {', '.join(_FORMATS)}")
    for name, given in (("median", median), ("decades", decades), ("scale", scale)):
        arguments.positive(name, given)
    return Scaled(_FORMATS[fmt], median, decades, scale, arguments.whole("gradients", gradients))


def describe(s: Scaled) -> str:
    """Return the result in words."""
    return (
        f"Gradients of median {s.median:.0e}, scaled by {s.scale:,.0f}, in {s.fmt.name}: {_share(s.lost)} become zero, "
        f"{_share(s.subnormal)} are subnormal and keep fewer bits, {_share(s.infinite)} become infinite. Of the steps "
        f"with {plots.count_text(s.gradients)} gradients, {_share(s.skipped)} are skipped. Predicted for independent "
        f"gradients whose logarithm is normal with a standard deviation of {s.decades:g} in decades, an assumption."
    )


def _share(share: float) -> str:
    if share < 1e-12:
        return "none"
    if share < 0.0005:
        return f"{share:.0e}"
    return "all" if share == 1.0 else "over 99.9%" if share > 0.9995 else f"{share:.1%}"


def draw(s: Scaled) -> Any:
    """Return the picture: the distribution after scaling, coloured by what the format makes of it."""
    figure, axes = plots.new(f"Scaled gradients in {s.fmt.name}", "absolute value, times scale", height_in=3.6)
    zero, normal, infinite = (math.log10(edge) for edge in s.edges)
    centre = math.log10(s.median * s.scale)
    low, high = min(zero, centre - 4 * s.decades) - 1, max(infinite, centre + 4 * s.decades) + 1
    zones = (
        (low, zero, plots.RED, f"zero: {_share(s.lost)}"),
        (zero, normal, plots.OCHRE, f"subnormal: {_share(s.subnormal)}"),
        (normal, infinite, plots.GREEN, "kept"),
        (infinite, high, plots.PLUM, f"infinite: {_share(s.infinite)}"),
    )
    for start, end, colour, name in zones:
        spots = [start + (end - start) * step / 400 for step in range(401)]
        heights = [_bell(x, centre, s.decades) for x in spots]
        axes.fill_between(spots, heights, color=colour, alpha=0.75, linewidth=0, label=name)
        axes.axvspan(start, end, color=colour, alpha=0.08, linewidth=0)
    spots = [low + (high - low) * step / 300 for step in range(301)]
    bells = [_bell(x, math.log10(s.median), s.decades) for x in spots]
    plots.line(axes, spots, bells, "without scale", plots.PREDICTED, color=plots.MUTED, linewidth=1.4)
    step = 2 if high - low < 30 else 10
    ticks = [t for t in range(math.ceil(low), math.floor(high) + 1) if t % step == 0]
    axes.set_xticks(ticks, [f"$10^{{{t}}}$" for t in ticks])
    axes.set(xlim=(low, high), yticks=[])
    axes.set_ylim(0, _bell(0, 0, s.decades) * 1.1)
    axes.grid(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=5, frameon=False, fontsize=8)
    return figure


def _bell(x: float, centre: float, width: float) -> float:
    return math.exp(-(((x - centre) / width) ** 2) / 2) / width


def explore() -> Explorer:
    """Return the explorer of lesson 03."""
    return Explorer(
        "what loss scaling saves",
        scaling,
        draw,
        describe,
        [
            Slider("scale", "Scale of the loss", _SCALES, 1, lambda n: f"2^{n.bit_length() - 1} = {n:,}"),
            Slider("median", "Median gradient", tuple(10.0**n for n in range(-12, 1)), 1e-7, lambda m: f"{m:.0e}"),
            Slider("decades", "Spread, decades", (0.5, 1.0, 1.5, 2.0), 1.0, lambda d: f"{d:g}"),
            Slider("gradients", "Gradients", tuple(10**n for n in range(3, 12)), 10**6, plots.count_text),
            Choice("fmt", "Number format", tuple(_FORMATS), "fp16"),
        ],
    )
