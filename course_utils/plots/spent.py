"""Plots of a step's bytes and time, measured or forecast."""

from __future__ import annotations

import itertools
import textwrap
from typing import TYPE_CHECKING, Protocol

from course_utils.plots import look
from course_utils.plots.clock import PHASES
from course_utils.plots.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simgpu import TimeForecast
    from simgpu.accounting.ledger import Moment

_BOUNDS = {
    "compute": look.RED, "power": look.OCHRE, "bandwidth": look.BLUE, "latency": look.MUTED, "not modelled": look.INK,
    "odd rows": look.GREEN,
}  # fmt: skip


class OverTime(Protocol):
    """Bytes over time: what `memory.measure` returns, and the `memory` of a forecast."""

    timeline: Sequence[Moment]
    label: str  # live, simulated or predicted
    caption: Callable[[], str]


def moments(found: OverTime, title: str = "Bytes alive after each operator") -> Figure:
    """Return the picture of the timeline of `memory.measure(…)` or of `simgpu.forecast(…).memory`.

    Its colours tell what the program was doing; the peak is marked.
    """
    said = found.caption()
    figure, axes = look.new(title, "operators so far", f"MiB alive, {found.label}", height_in=3.0, said=said)
    sizes_mib = [moment.bytes / 2**20 for moment in found.timeline]
    start, labels = 0, {phase: phase for phase in PHASES}
    for phase, several in itertools.groupby(found.timeline, key=lambda moment: moment.phase):
        stop = start + len(list(several))
        name, colour = labels.pop(phase, None), PHASES[phase]
        axes.stairs(sizes_mib[start:stop], range(start, stop + 1), fill=True, color=colour, lw=0, label=name)
        start = stop
    if sizes_mib:
        _mark_peak(axes, found.timeline, sizes_mib)
        look.legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.2)
    return figure


def _mark_peak(axes: Axes, timeline: Sequence[Moment], sizes_mib: list[float]) -> None:
    """Mark the first moment at which most bytes were alive, and let the axes end where the data does."""
    top = max(range(len(sizes_mib)), key=sizes_mib.__getitem__)
    right = top > len(sizes_mib) / 2
    axes.plot(top + 0.5, sizes_mib[top], "o", color=look.INK, markersize=4)
    words = {"xytext": (-7 if right else 7, 1), "textcoords": "offset points", "ha": "right" if right else "left"}
    axes.annotate(bytes_text(timeline[top].bytes), (top + 0.5, sizes_mib[top]), **words)
    axes.set_ylim(0, max(sizes_mib) * 1.12 or 1)
    axes.set_xlim(0, len(sizes_mib))


def kernels(found: TimeForecast, title: str = "") -> Figure:
    """Return the picture of `simgpu.forecast(…).on(…)`: the time of each kind of kernel, divided by what bounds it."""
    title = title or f"{seconds_text(found.total_s)} a step on {found.where}, simulated"
    shares, said = found.by_kind, found.caption()
    figure, axes = look.new(title, height_in=1.3 + 0.3 * len(shares), said=said)
    left = [0.0] * len(shares)
    for bound in found.by_bound:
        times_ms = [share.by_bound.get(bound, 0.0) * 1e3 for share in shares]
        axes.barh([share.name for share in shares], times_ms, left=left, color=_BOUNDS[bound], label=bound)
        left = [begin + length for begin, length in zip(left, times_ms, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel(textwrap.fill(f"ms; {found.evidence}", 92), loc="left", parse_math=False)
    look.legend(axes, title="bound by")
    return figure
