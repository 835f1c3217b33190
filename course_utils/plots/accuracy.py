"""Plots of predicted against measured numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_utils.plots import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simgpu import ErrorBar

_SHOWN = ("inference", "training", "short operators")


def errors(bar: ErrorBar) -> Figure:
    """Return the picture of `simgpu.error_bar()`: simulated against measured times by regime, a point for each run.

    On the line the two are equal; what lies below it was predicted too short. Runs that constants were chosen by are
    left out.
    """
    parts = [bar.where(lambda run, name=name: run.regime == name and not run.fitted) for name in _SHOWN]
    titles = tuple(f"{name}:\n{100 * part.median_error:.0f} % off" for name, part in zip(_SHOWN, parts, strict=True))
    figure, columns = look.new(titles, "measured (ms)", "simulated (ms)", log="xy", height_in=2.9, columns=len(parts))
    for axes, part in zip(columns, parts, strict=True):
        measured, predicted = [run.measured_ms for run in part.runs], [run.predicted_ms for run in part.runs]
        axes.plot(measured, predicted, ".", color=look.BLUE, markersize=3, alpha=0.6)
        ends = axes.get_xlim()
        axes.plot(ends, ends, color=look.INK, linewidth=0.8)
        axes.set_xlim(ends)
    return figure
