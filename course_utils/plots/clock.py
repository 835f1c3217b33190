"""Timelines of host and simulated GPUs."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

from course_utils.plots import look

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simgpu import ClusterTimeline, Gap, Record, Timeline

PHASES = {
    "forward": look.BLUE, "backward": look.GREEN, "optimizer step": look.PLUM, "recomputation": look.MUTED,
}  # fmt: skip
_COLOURS = {
    "launch": look.SKY, "wait": look.PALE, "host work (an input)": look.MUTED, "kernel": look.GREEN,
    "copy": look.OCHRE, "message": look.PLUM, "waits": look.PALE, "GPU idle": "#f2ab93",  # a pale red
}  # fmt: skip
_ROWS = (("computes", "kernel"), ("copies", "copy"), ("messages", "message"))
_THICK, _BEHIND = 0.68, 0.96  # of a row's height: its bars, and the parts of the training step behind them
_FEW = 200  # up to so many bars in a row are told apart by an edge; more of them would be nothing but edges
_LONGEST = 92  # letters of a line below the picture, with which it ends before the edge
_Blamed = dict[tuple[str, str, str], tuple[str, "Gap"]]


def timeline(
    seen: Timeline | None, title: str = "", *, causes: bool = True, until_ms: float | None = None
) -> Figure | None:
    """Return the picture of a timeline: one row for the host, for each GPU one of kernels, of copies and of messages.

    Behind them stand the parts of a training step; what a GPU lost by computing nothing is red, and the lines that
    caused most of it are listed below, with `causes`. Pictures to be compared share an axis: it ends at `until_ms`, or
    with the timeline. Of None, which `devices.on_simulated` returns where nothing can
    be simulated, there is no picture, but None.
    """
    if seen is None:
        return None
    rows = [("host", "host", ("wait", "work", "launch"))]
    rows += [(f"{row} {word}", row, (kind,)) for row in seen.rows for word, kind in _ROWS if seen.select(kind, row)]
    gaps = {row: seen.gaps(row) for row in seen.rows}
    blamed = _blamed(gaps, seen.total_ns) if causes else {}
    height_in = 1.4 + 0.45 * len(rows) + 0.17 * len(blamed)
    figure, axes = look.new(title or f"Simulated {seen.spec_name}", height_in=height_in, said=str(seen))
    for height, (_, row, kinds) in enumerate(reversed(rows)):
        if kinds[0] not in ("copy", "message"):
            _draw_phases(axes, height, seen.phases(row))
            _draw_gaps(axes, height, row, gaps.get(row, []), blamed)
        for kind in kinds:
            _draw_records(axes, height, seen.select(kind, row))
    texts = [*(f"{number}  {text}" for number, (text, _) in enumerate(blamed.values(), 1)), _label(seen)]
    _finish(figure, axes, [name for name, *_ in rows[::-1]], until_ms or seen.total_ms, texts)
    return figure


def ranks(seen: ClusterTimeline, title: str = "") -> Figure:
    """Return the picture of a cluster: for each rank a row of what its GPU computes, and one of its messages."""
    rows = [(rank, what) for rank in range(len(seen.ranks)) for what in ("computes", "messages")][::-1]
    title = title or f"{len(seen.ranks)} ranks, simulated {seen.ranks[0].spec_name}"
    figure, axes = look.new(title, height_in=1.3 + 0.28 * len(rows), said=str(seen))
    for height, (rank, what) in enumerate(rows):
        timeline = seen.ranks[rank]
        shift_ns = timeline.begin_ns - seen.first_ns
        if what == "computes":
            _draw_phases(axes, height, timeline.phases(), shift_ns)
        for kind in ("kernel",) if what == "computes" else ("waits", "message"):
            _draw_records(axes, height, timeline.select(kind), shift_ns)
    _finish(figure, axes, [f"rank {rank} {what}" for rank, what in rows], seen.total_ms, [_label(seen)])
    return figure


def _draw_records(axes: Axes, height: int, records: Sequence[Record], shift_ns: int = 0) -> None:
    """Draw records of one kind into a row, which stands at `height`."""
    edge = {"edgecolor": "white", "lw": 0.3} if len(records) <= _FEW else {"lw": 0}
    if records:
        name = "host work (an input)" if records[0].kind == "work" else records[0].kind
        spans = [(record.start_ns + shift_ns, record.duration_ns) for record in records]
        _bars(axes, height, _THICK, spans, name, color=_COLOURS[name], **edge)


def _draw_phases(axes: Axes, height: int, phases: Iterable[tuple[str, int, int]], shift_ns: int = 0) -> None:
    """Draw the parts of the training step behind a row."""
    for name, start, end in phases:
        _bars(axes, height, _BEHIND, [(start + shift_ns, end - start)], name, color=PHASES[name], alpha=0.35, lw=0)


def _draw_gaps(axes: Axes, height: int, row: str, gaps: Sequence[Gap], blamed: _Blamed) -> None:
    """Draw when a GPU computed nothing, and the numbers of those gaps that are explained below."""
    _bars(axes, height, _THICK, [gap[:2] for gap in gaps], "GPU idle", color=_COLOURS["GPU idle"], lw=0)
    for number, (key, (_, gap)) in enumerate(blamed.items(), 1):
        if key[0] == row:
            middle_ms = (gap.start_ns + gap.duration_ns / 2) / 1e6
            axes.text(middle_ms, height, str(number), ha="center", va="center", fontsize=8.5, weight="bold")


def _bars(
    axes: Axes, height: int, thick: float, spans_ns: Iterable[tuple[int, int]], name: str, **options: Any
) -> None:
    spans_ms = [(start / 1e6, length / 1e6) for start, length in spans_ns]
    if spans_ms:
        axes.broken_barh(spans_ms, (height - thick / 2, thick), label=name, **options)


def _blamed(gaps: Mapping[str, Sequence[Gap]], total_ns: int) -> _Blamed:
    """Return the three lines that cost most, if that is 3 % of the time or more: what is said, the longest gap."""
    spent, longest = Counter(), {}
    for row, gaps_of_row in gaps.items():
        for gap in gaps_of_row:
            key = (row, gap.line, gap.cause)
            spent[key] += gap.duration_ns
            longest[key] = max(gap, longest.get(key, gap), key=lambda one: one.duration_ns)
    most = [(key, ns) for key, ns in spent.most_common(3) if ns >= 0.03 * total_ns]
    return {key: (_said(key[0], key[1], key[2], ns), longest[key]) for key, ns in most}


def _said(row: str, line: str, cause: str, idle_ns: int) -> str:
    text = ", ".join(filter(None, [f"{row} idle for {idle_ns / 1e6:.3f} ms in all: {cause}", line]))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _label(seen: Timeline | ClusterTimeline) -> str:
    """Return how far the clock may be off, in lines that fit below the picture."""
    return textwrap.fill(str(seen.evidence), _LONGEST)


def _finish(figure: Figure, axes: Axes, rows: list[str], total_ms: float, below: Sequence[str]) -> None:
    """Name the rows of a picture, from below, set its axis of time, write lines `below`, and explain the colours."""
    axes.set(yticks=range(len(rows)), yticklabels=rows, ylim=(-0.5, len(rows) - 0.5), xlim=(0, total_ms or 1))
    text = "\n".join(["simulated time (ms)", *below])
    axes.set_xlabel(text, loc="left", fontsize=8.5, parse_math=False)
    axes.spines["left"].set_visible(False)
    axes.grid(False, axis="y")
    shown = {bars.get_label(): bars for bars in axes.collections}
    order = [name for name in (*_COLOURS, *PHASES) if name in shown]
    with look.style():
        options = {"ncols": 6, "fontsize": 8.5, "handlelength": 1.2, "columnspacing": 1.2}
        figure.legend([shown[name] for name in order], order, loc="outside upper right", **options)
