"""Measured curves beside recorded, published and predicted ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_utils.plots import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "Dsv^Po"


@dataclass(frozen=True)
class Curve:
    """Numbers `y` over `x`: the `name` of what they are, "" where that is plain, and where they come from.

    `provenance` is the style of such numbers (`plots.LIVE`, …), `source` what the legend says of them.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    provenance: Any
    source: str

    @property
    def label(self) -> str:
        """The text of the legend: the name and the source."""
        return ", ".join(filter(None, [self.name, self.source]))

    @property
    def is_points(self) -> bool:
        """Whether others published these numbers, each by itself; one number for any x is a line across instead."""
        return self.provenance == look.PUBLISHED and (len(self.y) != 2 or self.y[0] != self.y[1])


@dataclass(frozen=True)
class Comparison:
    """Curves that belong together, the measured ones first, and what their axes are."""

    curves: tuple[Curve, ...]
    xlabel: str
    ylabel: str


def curves(found: Comparison, title: str = "", *, log: str = "xy") -> Figure:
    """Return the picture of the curves as lines; `log` says which axes are logarithmic: "", "x", "y" or "xy".

    A curve of one name has one colour, whatever it was measured on. What others published has marks at its points, and
    a legend below the axes, where there is room for its source.
    """
    others = sum(curve.provenance == look.PUBLISHED for curve in found.curves)
    figure, axes = look.new(title, found.xlabel, found.ylabel, log=log, height_in=3.4 + 0.2 * others)
    markers = itertools.cycle(_MARKERS)
    names = list(dict.fromkeys(curve.name or curve.source for curve in found.curves))
    for curve in found.curves:
        index = names.index(curve.name or curve.source)
        marked = {"marker": next(markers)} if curve.is_points else {}
        add_curve(axes, curve, color=look.PALETTE[index % len(look.PALETTE)], **marked)
    look.legend(axes)
    return figure


def add_curve(axes: Axes, curve: Curve, **options: Any) -> None:
    """Draw one curve in the style of its provenance; options go to `Axes.plot`."""
    look.line(axes, curve.x, curve.y, curve.name, curve.provenance, label=curve.label, **options)
