"""How do all pictures of the course look, and how do they say where their numbers come from?

    plots.timeline(seen)                                       # of simgpu.timeline(): host and GPUs, what they did when
    plots.ranks(timeline)                                      # the same of all ranks of a cluster
    plots.touched(report, "out")                               # which thread touched which element
    plots.moments(measured), plots.moments(ahead.memory)       # bytes alive over time, measured or forecast
    plots.kernels(ahead.on("H100 SXM"))                        # which kinds of kernels take the time
    plots.curves(recorded.compare(...), "GB/s by size")        # measured beside recorded, published and predicted

    figure, axes = plots.new("Training loss", "step", "loss")  # a picture of your own, in the same look
    plots.line(axes, steps, losses, "batch 64", plots.LIVE)
    plots.legend(axes)

A picture is a matplotlib figure that never touches pyplot's global state. Make it the last expression of a cell, or
hand it to `display`. Line styles tell the provenance of numbers: solid is live, dashed is recorded, dotted is
predicted, dash-dot is simulated, dash-dot-dot is published by others. Engines and rooms return numbers; all of their
pictures are drawn here.
"""

from course_utils.plots.accuracy import errors
from course_utils.plots.clock import PHASES, ranks, timeline
from course_utils.plots.look import (
    BLUE,
    GREEN,
    GRID,
    INK,
    LIVE,
    MUTED,
    OCHRE,
    PALE,
    PALETTE,
    PLUM,
    PREDICTED,
    PROVENANCE,
    PUBLISHED,
    RECORDED,
    RED,
    SIMULATED,
    SKY,
    hatch,
    label,
    legend,
    line,
    new,
    png,
    stack,
    style,
    to_html,
)
from course_utils.plots.sources import Comparison, Curve, add_curve, curves
from course_utils.plots.spent import kernels, moments
from course_utils.plots.touches import BLOCKS, touched
from course_utils.plots.units import axis_bytes, axis_seconds, bytes_text, count_text, seconds_text

__all__ = [
    "BLOCKS", "BLUE", "GREEN", "GRID", "INK", "LIVE", "MUTED", "OCHRE", "PALE", "PALETTE", "PHASES", "PLUM",
    "PREDICTED", "PROVENANCE", "PUBLISHED", "RECORDED", "RED", "SIMULATED", "SKY", "Comparison", "Curve", "add_curve",
    "axis_bytes", "axis_seconds", "bytes_text", "count_text", "curves", "errors", "hatch", "kernels", "label", "legend",
    "line", "moments", "new", "png", "ranks", "seconds_text", "stack", "style", "timeline", "to_html", "touched",
]  # fmt: skip
