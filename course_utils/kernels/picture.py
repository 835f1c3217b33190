"""Which thread touches which element, drawn: also where it is wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from course_utils.kernels.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["picture"]


def picture(report: Report, array: str) -> Figure:
    """Return a picture of a launch: a point for each element of `array` that a thread touched, a colour for each block.

    Elements lie to the right, threads of all blocks upwards; crosses are reads. What is out of bounds is red, elements
    that no thread touched are grey. The report must have `touched`, which launches of up to 40,000 accesses have.
    """
    from matplotlib.figure import Figure

    if array not in report.touched:
        raise ValueError(f"the report has no accesses to {array}; it has {', '.join(report.touched) or 'none'}")
    count, per_block = math.prod(report.shapes[array]), math.prod(report.block)
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    for mark, kinds in (("x", ("read",)), ("o", ("write", "atomic"))):
        rows = [(e, b, t) for e, b, t, kind in report.touched[array] if kind in kinds]
        for wrong in (False, True):
            some = [row for row in rows if (0 <= row[0] < count) != wrong]
            colours = ["red" if wrong else f"C{b % 10 if b % 10 != 3 else 4}" for _, b, _ in some]  # C3 is red
            axes.scatter([e for e, _, _ in some], [b * per_block + t for _, b, t in some], 12, colours, marker=mark)
    for element in set(range(min(count, 4096))) - {row[0] for row in report.touched[array]}:
        axes.axvspan(element - 0.5, element + 0.5, color="lightgrey", zorder=0)
    for edge in (-0.5, count - 0.5):
        axes.axvline(edge, color="black", linewidth=1)
    axes.set(xlabel=f"element of {array}", ylabel=f"thread, {per_block} a block")
    wrong = sum(not 0 <= row[0] < count for row in report.touched[array])
    axes.set_title(f"{report.kernel}: {wrong} accesses out of bounds" if wrong else report.kernel)
    return figure
