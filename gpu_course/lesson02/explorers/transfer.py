"""What does it cost to bring data to the device? Size, number of pieces, pinned or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import simgpu
from course_utils import gpus, plots, recorded
from gpu_course.explorers import Choice, Explorer, Slider, Switch

__all__ = ["Transfer", "explore", "transfer"]

_ASSUMED = simgpu.Costs()  # of the simulated GPU's clock
LATENCY_S = (simgpu.hosts.DEFAULT.price_ns("copy") + _ASSUMED.copy_ns) * 1e-9  # of a copy that the host waits for
PAGEABLE_SHARE = _ASSUMED.pageable_share  # of the bus rate, from pageable memory

KEY = "02.transfer_bandwidth"  # under which lesson 02 records its curves


@dataclass(frozen=True)
class Transfer:
    """Predicted time to copy `nbytes` to a GPU in equal pieces, one after the other, each at `rate_gbps`."""

    gpu: str
    nbytes: int
    pieces: int
    pinned: bool
    rate_gbps: float
    latency_s: float
    live: tuple[tuple[int, float], ...] = ()  # (bytes of one copy, seconds), measured on this machine
    recorded: tuple[plots.Curve, ...] = ()  # GB/s over the bytes of one copy

    latencies_s = property(lambda t: t.pieces * t.latency_s, doc="Seconds that the pieces spend on their fixed cost.")
    bus_s = property(lambda self: self.nbytes / (self.rate_gbps * 1e9), doc="Seconds on the bus.")
    total_s = property(lambda self: self.latencies_s + self.bus_s, doc="Seconds of all copies.")
    reached_gbps = property(lambda self: self.nbytes / self.total_s / 1e9, doc="Bytes over time, in GB/s.")
    # the size of a piece whose time on the bus equals its latency: it reaches half of the rate
    break_even_bytes = property(lambda t: t.latency_s * t.rate_gbps * 1e9, doc="Bytes that reach half of the rate.")

    def curve_gbps(self, piece_bytes: float) -> float:
        """Return the GB/s that copies of this size reach: bytes / (latency + bytes / rate)."""
        return piece_bytes / (self.latency_s + piece_bytes / (self.rate_gbps * 1e9)) / 1e9


def transfer(
    *, nbytes: int, pieces: int, pinned: bool, gpu: str, live: Mapping[int, float] | None = None,
    runs: Sequence[recorded.Run] = (),
) -> Transfer:  # fmt: skip
    """Predict the copy of `nbytes` bytes to `gpu` in `pieces`: pieces x latency + bytes / rate of the bus.

    `live` maps the size of one copy in bytes to seconds measured on this machine; `runs` are recorded ones, as from
    `recorded.load()`.
    """
    row = gpus.get(gpu, "gpu")
    rate = row.bus_gbps * (1.0 if pinned else PAGEABLE_SHARE)
    measured = tuple(sorted((live or {}).items()))
    return Transfer(row.name, nbytes, pieces, pinned, rate, LATENCY_S, measured, recorded.curves(runs, KEY))


def describe(t: Transfer) -> str:
    """Return the result in words."""
    kind = "pinned" if t.pinned else "pageable"
    pieces = "1 piece" if t.pieces == 1 else f"{t.pieces:,} pieces of {plots.bytes_text(t.nbytes / t.pieces)}"
    total, latencies, latency = (plots.seconds_text(s) for s in (t.total_s, t.latencies_s, t.latency_s))
    return (
        f"{plots.bytes_text(t.nbytes)} from {kind} memory to the {t.gpu} in {pieces}: {total}, of which {latencies} "
        f"latency. That is {t.reached_gbps:.3g} of {t.rate_gbps:.3g} GB/s; a piece of "
        f"{plots.bytes_text(t.break_even_bytes)} reaches half of that. Predicted from the bus's data sheet and two "
        f"assumptions: {latency} of latency for each piece, and half of the rate from pageable memory."
    )


def draw(t: Transfer) -> Any:
    """Return the picture: bandwidth against the size of a piece, this transfer marked, and the parts of its time."""
    titles, height_in = ("Bandwidth against size of a piece", "Time of all pieces"), 3.8 + 0.2 * len(t.recorded)
    size = "size of a piece"
    figure, (left, right) = plots.new(titles, size, "GB/s", columns=2, widths=(5, 3), height_in=height_in)
    left.set_xscale("log")
    _draw_bandwidth(left, t)
    _draw_parts(right, t)
    columns = 1 if t.recorded else 4  # the label of a recorded curve is a line of its own
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=columns, frameon=False, fontsize=9)
    return figure


def _draw_bandwidth(axes: Any, t: Transfer) -> None:
    sizes = [2**n for n in range(2, 31)]
    for curve in t.recorded:
        plots.add_curve(axes, curve, color=plots.PLUM)
    if t.live:
        known = [(size, size / seconds / 1e9) for size, seconds in t.live]
        plots.line(axes, *zip(*known, strict=True), "this machine", plots.LIVE, color=plots.GREEN)
    plots.line(axes, sizes, [t.curve_gbps(n) for n in sizes], t.gpu, plots.PREDICTED, color=plots.BLUE)
    half = {"color": plots.BLUE, "markerfacecolor": "white", "label": "half of the rate"}
    axes.plot([t.break_even_bytes], [t.rate_gbps / 2], "D", **half)
    marked = {"color": plots.RED, "markersize": 9, "zorder": 5, "label": "this transfer"}
    axes.plot([t.nbytes / t.pieces], [t.reached_gbps], "o", **marked)
    plots.axis_bytes(axes.xaxis)
    axes.set_xlim(2, 2**31)
    highest = [gpus.get(t.gpu).bus_gbps, *(n / s / 1e9 for n, s in t.live), *(max(curve.y) for curve in t.recorded)]
    axes.set_ylim(0, max(highest) * 1.06)


def _draw_parts(axes: Any, t: Transfer) -> None:
    """Draw two stacked bars on one scale: all bytes in one piece, and in `t.pieces` pieces."""
    bars = ("1 piece", f"{t.pieces:,} pieces") if t.pieces > 1 else ("1 piece",)
    latency_ms = [t.latency_s * 1e3, t.latencies_s * 1e3][: len(bars)]
    bus_ms = [t.bus_s * 1e3] * len(bars)
    look = {"width": 0.55, "edgecolor": "white", "hatch": plots.hatch(plots.PREDICTED)}
    axes.bar(bars, bus_ms, color=plots.BLUE, label="bytes / rate", **look)
    axes.bar(bars, latency_ms, bottom=bus_ms, color=plots.OCHRE, label="pieces x latency", **look)
    for index, (above, below) in enumerate(zip(latency_ms, bus_ms, strict=True)):
        text = plots.seconds_text((above + below) / 1e3)
        axes.annotate(text, (index, above + below), (0, 4), textcoords="offset points", ha="center")
    axes.set(xlim=(-0.6, len(bars) - 0.4), xlabel="predicted", ylabel="ms")
    axes.set_ylim(0, (t.total_s * 1e3) * 1.45)
    axes.grid(False, axis="x")
    plots.legend(axes, loc="upper left", fontsize=8, handlelength=1.4)


def explore(gpu: str = "T4", live: Mapping[int, float] | None = None) -> Explorer:
    """Return the explorer of lesson 02, for `gpu` at first; `live` as in `transfer`.

    Raises ValueError or TypeError where `gpu` is none with a bus to the host.
    """
    controls = [
        Slider("nbytes", "Size", tuple(2**n for n in range(16, 31, 2)), 2**26, plots.bytes_text),
        Slider("pieces", "Pieces", tuple(2**n for n in range(0, 15, 2)), 256),
        Switch("pinned", "Pinned memory"),
        Choice("gpu", "GPU", [row.name for row in gpus.ALL if row.bus_gbps], gpus.get(gpu, "gpu").name),
    ]
    fixed = {"live": live, "runs": recorded.load()}
    return Explorer("what a copy to the device costs", transfer, draw, describe, controls, fixed)
