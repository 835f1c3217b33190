"""What does it cost to bring data to the device? Size, number of pieces, pinned or not.

Questions for the reader: (1) 64 MiB in 1 piece and in 16,384 pieces: which part of the time grows? (2) How large must a
piece be before the latency is less than a tenth of its time?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course_utils import gpus, plots
from course_utils.explorers import Choice, Explorer, Slider, Switch

__all__ = ["Transfer", "explore", "transfer"]

LATENCY_S = 10e-6  # a copy takes at least this long: an assumption, the same as simulator.Costs.copy_ns
PAGEABLE_SHARE = 0.5  # of the bus rate, from pageable memory: an assumption, the same as simulator.Costs.pageable_share


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

    @property
    def latencies_s(self) -> float:
        """Time that the pieces spend on their fixed cost, in seconds."""
        return self.pieces * self.latency_s

    @property
    def bus_s(self) -> float:
        """Time on the bus, in seconds."""
        return self.nbytes / (self.rate_gbps * 1e9)

    @property
    def total_s(self) -> float:
        """Time of all copies, in seconds."""
        return self.latencies_s + self.bus_s

    @property
    def reached_gbps(self) -> float:
        """Bytes over time, in GB/s."""
        return self.nbytes / self.total_s / 1e9

    @property
    def break_even_bytes(self) -> float:
        """Size of a piece whose time on the bus equals its latency."""
        return self.latency_s * self.rate_gbps * 1e9


def transfer(*, nbytes: int, pieces: int, pinned: bool, gpu: str, live: Mapping[int, float] | None = None) -> Transfer:
    """Predict the copy of `nbytes` bytes to `gpu` in `pieces`: pieces x latency + bytes / rate of the bus.

    `live` maps the size of one copy in bytes to seconds measured on this machine. Raises ValueError for sizes below 1,
    more pieces than bytes, or a GPU without a bus to the host.
    """
    if nbytes < 1 or pieces < 1 or pieces > nbytes:
        raise ValueError(f"nbytes and pieces must be at least 1 and pieces at most nbytes, not {nbytes} and {pieces}")
    row = gpus.get(gpu)
    if row.bus_gbps is None:
        raise ValueError(f"gpu is {gpu!r}, it must have a bus to the host")
    rate = row.bus_gbps * (1.0 if pinned else PAGEABLE_SHARE)
    measured = tuple(sorted((live or {}).items()))
    return Transfer(row.name, nbytes, pieces, pinned, rate, LATENCY_S, measured)


def describe(t: Transfer) -> str:
    """Return the result in words."""
    kind = "pinned" if t.pinned else "pageable"
    each = plots.bytes_text(t.nbytes / t.pieces)
    pieces = "1 piece" if t.pieces == 1 else f"{t.pieces:,} pieces of {each}"
    return (
        f"{plots.bytes_text(t.nbytes)} from {kind} memory to the {t.gpu} in {pieces}: {plots.seconds_text(t.total_s)}, "
        f"of which latency {plots.seconds_text(t.latencies_s)}. That is {t.reached_gbps:.3g} of {t.rate_gbps:.3g} "
        "GB/s. Predicted from the data sheet and an assumed latency of 10 µs."
    )


def draw(t: Transfer) -> Any:
    """Return the picture: bandwidth against the size of a piece, this transfer marked, and the parts of its time."""
    figure, (left, right) = plots.new(
        "Bandwidth reached by one copy", "size of a piece", "GB/s", columns=2, widths=(3, 1), log="x"
    )
    sizes = [2**n for n in range(8, 31)]
    curve = [size / (t.latency_s + size / (t.rate_gbps * 1e9)) / 1e9 for size in sizes]
    plots.line(left, sizes, curve, t.gpu, plots.PREDICTED, color=plots.BLUE)
    if t.live:
        known = [(size, size / seconds / 1e9) for size, seconds in t.live]
        plots.line(left, *zip(*known, strict=True), "this machine", plots.LIVE, color=plots.GREEN)
    left.plot([t.nbytes / t.pieces], [t.reached_gbps], "o", color=plots.RED, markersize=8, zorder=5)
    left.axhline(t.rate_gbps, color=plots.MUTED, linewidth=0.8)
    plots.axis_bytes(left.xaxis)
    left.tick_params(axis="x", rotation=30)
    left.set_ylim(bottom=0)
    plots.legend(left)
    right.set_xscale("linear")
    right.bar(
        [0], [t.bus_s * 1e3], color=plots.BLUE, hatch=plots.hatch(plots.PREDICTED), edgecolor="white", label="bus"
    )
    right.bar([0], [t.latencies_s * 1e3], bottom=[t.bus_s * 1e3], color=plots.RED, label="latency")
    right.set(xticks=[], xlim=(-0.8, 0.8), xlabel="", ylabel="time (ms)")
    right.set_title("All pieces", fontsize=10.5, fontweight="bold", loc="left")
    plots.legend(right, loc="upper center", bbox_to_anchor=(0.5, -0.03), ncols=1)
    return figure


_GPUS = tuple(gpu.name for gpu in gpus.ALL if gpu.bus_gbps is not None)


def explore(gpu: str = "T4", live: Mapping[int, float] | None = None) -> Explorer:
    """Return the explorer of lesson 02, for `gpu` at first; `live` as in `transfer`."""
    return Explorer(
        "what a copy to the device costs",
        transfer,
        draw,
        describe,
        [
            Slider("nbytes", "Size", tuple(2**n for n in range(16, 31, 2)), 2**26, plots.bytes_text),
            Slider("pieces", "Pieces", tuple(2**n for n in range(0, 15, 2)), 1, lambda n: f"{n:,}"),
            Switch("pinned", "pinned memory"),
            Choice("gpu", "GPU", _GPUS, gpus.get(gpu).name),
        ],
        {"live": live},
    )
