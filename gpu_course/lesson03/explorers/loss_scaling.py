"""Which share of the gradients does fp16 lose, and what does it help to multiply the loss by a scale?"""

import math
from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Choice, Explorer, Slider
from gpu_course.lesson03.explorers.formats import FORMATS, Format

__all__ = ["Scaled", "explore", "scaling"]

_FORMATS = {fmt.name: fmt for fmt in FORMATS if fmt.name in ("fp16", "bf16", "fp8 e5m2")}


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

    def _beyond(self, edge: int, side: int) -> float:
        """Return the share of scaled gradients above an edge (side 1) or below it (side -1), from 0 to 1."""
        distance = (math.log10(self.edges[edge]) - math.log10(self.median * self.scale)) / self.decades
        return 0.5 * math.erfc(side * distance / math.sqrt(2))

    lost = property(lambda self: self._beyond(0, -1), doc="Share that becomes zero.")
    subnormal = property(lambda self: self._beyond(1, -1) - self.lost, doc="Share that keeps fewer bits.")
    infinite = property(lambda self: self._beyond(2, 1), doc="Share that becomes infinite.")

    @property
    def skipped(self) -> float:
        """Chance that at least one gradient is infinite, in which case GradScaler skips the step."""
        if self.infinite >= 1.0:
            return 1.0
        return -math.expm1(self.gradients * math.log1p(-self.infinite))


def scaling(*, fmt: str, median: float, decades: float, scale: float, gradients: int) -> Scaled:
    """Return what happens to gradients of this `median` and spread, in decades, in `fmt` after times `scale`.

    Independent gradients with a normally distributed logarithm are an assumption; those of a real network have other
    tails.
    """
    return Scaled(_FORMATS[fmt], median, decades, scale, gradients)


def describe(s: Scaled) -> str:
    """Return the result in words."""
    return (
        f"Gradients of median {s.median:.0e}, scaled by {s.scale:,.0f}, in {s.fmt.name}: {_share(s.lost)} become zero, "
        f"{_share(s.subnormal)} are subnormal and keep fewer bits, {_share(s.infinite)} become infinite. Of the steps "
        f"with {plots.count_text(s.gradients)} gradients, {_share(s.skipped)} are skipped. Predicted for independent "
        f"gradients whose power of ten is normally distributed, standard deviation {s.decades:g}: an assumption."
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
    axes.set(xlim=(low, high), ylim=(0, _bell(0, 0, s.decades) * 1.1), yticks=[])
    axes.grid(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=5, frameon=False, fontsize=8)
    return figure


def _bell(x: float, centre: float, width: float) -> float:
    return math.exp(-(((x - centre) / width) ** 2) / 2) / width


def explore() -> Explorer:
    """Return the explorer of lesson 03."""
    scales, power = tuple(2**n for n in range(0, 33, 2)), lambda n: f"2^{n.bit_length() - 1} = {n:,}"
    controls = [
        Slider("scale", "Scale of the loss", scales, 1, power),
        Slider("median", "Median gradient", tuple(10.0**n for n in range(-12, 1)), 1e-7, "{:.0e}".format),
        Slider("decades", "Spread, decades", (0.5, 1.0, 1.5, 2.0), 1.0),
        Slider("gradients", "Gradients", tuple(10**n for n in range(3, 12)), 10**6, plots.count_text),
        Choice("fmt", "Number format", tuple(_FORMATS), "fp16"),
    ]
    return Explorer("what loss scaling saves", scaling, draw, describe, controls)
