"""What does a ring all-reduce cost, and why is it better than sending everything to one rank?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Explorer, Slider
from gpu_course.lesson09.explorers.collectives import COLOURS
from gpu_course.lesson09.explorers.exchange import Exchange, exchange

__all__ = ["Ring", "explore", "ring"]

_DRAWN = len(COLOURS)  # more ranks are computed, but not drawn one by one
_RANKS = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Ring:
    """An all-reduce of `nbytes` bytes among `ranks`, over links that send and receive `gbps` GB/s at the same time.

    The model is latency + bytes / bandwidth for each message (the cost model of Thakur, Rabenseifner and Gropp
    2005); the addition itself is left out. No way in which the ranks add has a rank send less (Patarasuk and Yuan
    2009). The other way is over one root, which gathers all tensors one after the other, adds, and sends the sum to
    each.
    """

    ranks: int
    nbytes: int
    gbps: float
    latency_s: float
    step: int

    steps = property(lambda r: 2 * (r.ranks - 1), doc="Steps of the ring: n - 1 to add up, n - 1 to pass on the sums.")
    chunk_bytes = property(lambda r: r.nbytes / r.ranks, doc="Bytes of one message: the tensor divided by the ranks.")
    latencies_s = property(lambda r: r.steps * r.latency_s, doc="Seconds that are there even for an empty tensor.")

    sent_bytes = property(lambda r: r.steps * r.chunk_bytes, doc="Bytes that a rank sends: 2 (n - 1) / n x size.")
    root_bytes = property(lambda r: r.steps * r.nbytes, doc="Bytes through the link of the one root.")

    @property
    def ring_s(self) -> float:
        """Time in seconds: 2 (n - 1) messages of size / n, all ranks at once."""
        return self.steps * (self.latency_s + self.chunk_bytes / (self.gbps * 1e9))

    @property
    def root_s(self) -> float:
        """Time in seconds of the way over the root."""
        return self.steps * (self.latency_s + self.nbytes / (self.gbps * 1e9))


def ring(*, ranks: int, nbytes: int, gbps: float, latency_us: float, step: int = 1) -> Ring:
    """Return what an all-reduce among `ranks` costs; `step` from 1 is the one drawn, beyond the last it means the last.

    `gbps` is the bandwidth of a link in one direction in GB/s, `latency_us` the fixed cost of a message.
    """
    return Ring(ranks, nbytes, gbps, latency_us * 1e-6, min(step, 2 * (ranks - 1)))


def describe(r: Ring) -> str:
    """Return the result in words."""
    phase = "adding up" if r.step < r.ranks else "passing on the sums"
    step = f" Step {r.step}: {phase}." if r.ranks <= _DRAWN else ""
    latency = r.latencies_s / r.ring_s
    return (
        f"Ring all-reduce of {plots.bytes_text(r.nbytes)} among {r.ranks} ranks: {r.steps} steps of "
        f"{plots.bytes_text(r.chunk_bytes)}, {plots.bytes_text(r.sent_bytes)} sent by each rank, "
        f"{plots.seconds_text(r.ring_s)} ({latency:.0%} of it latency). Over one root: "
        f"{plots.bytes_text(r.root_bytes)} through its link, {plots.seconds_text(r.root_s)}.{step} "
        f"Predicted with {r.gbps:g} GB/s a link and direction and {plots.seconds_text(r.latency_s)} a message."
    )


def draw(r: Ring) -> Any:
    """Return the picture: the time of both ways against the ranks, and beside it, where that can be drawn, the ring."""
    if r.ranks <= _DRAWN:
        titles = (f"Step {r.step} of {r.steps}", "Time, predicted")
        figure, (left, right) = plots.new(titles, columns=2, widths=(1, 1), height_in=4.0)
        _draw_ring(left, exchange("all_reduce", r.ranks), r.step)
    else:
        figure, right = plots.new("Time, predicted", height_in=4.0)
    _draw_times(right, r)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    return figure


def _draw_ring(axes: Any, run: Exchange, step: int) -> None:
    """Draw the ranks in a circle, beside each how complete its pieces are, and on each arrow the piece that is sent."""
    from matplotlib.patches import Circle, Rectangle

    n, cell = run.ranks, min(0.2, 0.9 / run.ranks)
    for rank, slots in enumerate(run.states[step - 1]):
        x, y = _on_circle(rank, n, 1.2)
        axes.add_patch(Circle((x, y), 0.17, color=COLOURS[rank], zorder=4))
        axes.text(x, y, f"{rank}", ha="center", va="center", color="white", weight="bold", zorder=5)
        x, y = (_on_circle(rank, n, radius)[axis] for axis, radius in enumerate((1.95, 1.7)))
        for index, slot in enumerate(slots):
            done = len(slot) == n
            look = {"facecolor": plots.GREEN if done else plots.SKY, "alpha": 1.0 if done else len(slot) / n}
            spot = (x + (index - n / 2) * cell, y - 0.09)
            axes.add_patch(Rectangle(spot, cell, 0.18, linewidth=0, **look))
            axes.add_patch(Rectangle(spot, cell, 0.18, fill=False, edgecolor=plots.MUTED, linewidth=0.5))
    for message in run.steps[step - 1]:
        start, end = (_on_circle(who, n, 1.2) for who in (message.sender, message.receiver))
        look = {"arrowstyle": "-|>", "color": plots.INK, "linewidth": 1.2, "connectionstyle": "arc3,rad=-0.18"}
        axes.annotate("", xy=end, xytext=start, arrowprops={**look, "shrinkA": 14, "shrinkB": 14}, zorder=9)
        turn = _on_circle(message.sender + 0.5, n, 0.85 if n > 2 else 0.5)
        axes.text(*turn, f"{message.slots[0][0]}", ha="center", va="center", fontsize=9)
    legend = "on an arrow: the part that is sent\npale: partial sums, green: complete"
    axes.text(0, -2.35, legend, ha="center", fontsize=8, color=plots.MUTED)
    axes.set(xlim=(-2.5, 2.5), ylim=(-2.35, 2.0), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)
    axes.grid(False)


def _on_circle(rank: float, n: int, radius: float) -> tuple[float, float]:
    """Return where a rank stands: 0 on top, clockwise."""
    angle = math.pi / 2 - 2 * math.pi * rank / n
    return radius * math.cos(angle), radius * math.sin(angle)


def _draw_times(axes: Any, r: Ring) -> None:
    """Draw the time of both ways against the number of ranks, and mark the chosen number."""
    rows = [Ring(n, r.nbytes, r.gbps, r.latency_s, 1) for n in _RANKS]
    axes.set(xscale="log", yscale="log", xlabel="ranks")
    plots.line(axes, _RANKS, [row.root_s for row in rows], "over one root", plots.PREDICTED, color=plots.OCHRE)
    plots.line(axes, _RANKS, [row.ring_s for row in rows], "ring", plots.PREDICTED, color=plots.BLUE)
    if r.latency_s:
        alone = [row.latencies_s for row in rows]
        plots.line(axes, _RANKS, alone, "latency alone", plots.PREDICTED, color=plots.MUTED, linewidth=1.2)
    for seconds, colour in ((r.root_s, plots.OCHRE), (r.ring_s, plots.BLUE)):
        axes.plot([r.ranks], [seconds], "o", color=colour, markersize=8, zorder=5)
    axes.set_xticks((2, 8, 32, 128), ("2", "8", "32", "128"))
    axes.minorticks_off()
    plots.axis_seconds(axes.yaxis)


def explore() -> Explorer:
    """Return the explorer of lesson 09."""
    controls = [
        Slider("ranks", "Ranks", _RANKS, 4),
        Slider("step", "Step", tuple(range(1, 15)), 1),
        Slider("nbytes", "Tensor size", tuple(2**n for n in range(6, 35, 2)), 2**28, plots.bytes_text),
        Slider("gbps", "GB/s a link", (0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0), 10.0),
        Slider("latency_us", "Latency, µs", (0.0, 1.0, 5.0, 10.0, 50.0, 100.0, 1000.0), 10.0),
    ]
    return Explorer("what a ring all-reduce costs", ring, draw, describe, controls, offered=_offered)


def _offered(chosen: Mapping[str, Any]) -> dict[str, int]:
    """Return how many steps can be drawn."""
    return {"step": 2 * (chosen["ranks"] - 1) if chosen["ranks"] <= _DRAWN else 1}
