"""What did host and GPUs do, and when? Records of the virtual clock, their totals and a picture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from course_utils.simulator.model import Record

__all__ = ["Timeline", "timeline"]

_COLOURS = {"launch": "#8da0cb", "kernel": "#1b7837", "copy": "#e08214", "wait": "#d9d9d9"}


class Timeline:
    """Records between entering and leaving `timeline()`; times start at 0 when it was entered."""

    def __init__(self, spec_name: str, rows: tuple[str, ...]) -> None:
        self.spec_name, self.rows = spec_name, rows
        self.records: list[Record] = []
        self.total_ns = 0

    @property
    def total_ms(self) -> float:
        """Time until host and GPUs are done, in ms."""
        return self.total_ns / 1e6

    def select(self, kind: str, row: str | None = None) -> list[Record]:
        """Return the records of a kind (launch, kernel, copy, wait), of one row or all."""
        return [r for r in self.records if r.kind == kind and row in (None, r.row)]

    def busy_ms(self, row: str = "sim:0") -> float:
        """Return how long a GPU computed, or the host launched, in ms (overlapping streams count once)."""
        busy, until = 0, 0
        kinds = ("launch",) if row == "host" else ("kernel",)
        for record in sorted((r for r in self.records if r.row == row and r.kind in kinds), key=lambda r: r.start_ns):
            busy += max(0, record.end_ns - max(record.start_ns, until))
            until = max(until, record.end_ns)
        return busy / 1e6

    def utilisation(self, row: str = "sim:0") -> float:
        """Return the share of the total time, 0 to 1, in which a GPU computed."""
        return self.busy_ms(row) * 1e6 / self.total_ns if self.total_ns else 0.0

    @property
    def waited_ms(self) -> float:
        """Time that the host spent waiting for GPUs, in ms."""
        return sum(r.duration_ns for r in self.select("wait")) / 1e6

    def __str__(self) -> str:
        lines = [f"simulated {self.spec_name}: {self.total_ms:.3f} ms in all, host waits {self.waited_ms:.3f} ms"]
        for row in self.rows:
            kernels, copies = self.select("kernel", row), self.select("copy", row)
            if kernels or copies:
                lines.append(
                    f"  {row}: {len(kernels)} kernels, busy {self.busy_ms(row):.3f} ms "
                    f"({self.utilisation(row):.0%}), {len(copies)} copies"
                )
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, title: str | None = None):
        """Return a matplotlib Figure: one row for the host, and for each GPU one of kernels and one of copies."""
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch

        parts = (("computes", "kernel"), ("copies", "copy"))
        rows = [("host", "host", ("wait", "launch"))]
        rows += [(f"{row} {word}", row, (kind,)) for row in self.rows for word, kind in parts if self.select(kind, row)]
        figure = Figure(figsize=(7.5, 0.9 + 0.45 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for height, (_, row, kinds) in enumerate(reversed(rows)):
            for kind in kinds:
                spans = [(r.start_ns / 1e6, r.duration_ns / 1e6) for r in self.select(kind, row)]
                if spans:
                    axes.broken_barh(spans, (height - 0.4, 0.8), facecolors=_COLOURS[kind], edgecolor="white", lw=0.3)
        axes.set(yticks=range(len(rows)), yticklabels=[name for name, *_ in rows[::-1]], xlabel="simulated time (ms)")
        axes.set_title(title or f"Simulated {self.spec_name}", loc="left")
        axes.set_xlim(0, self.total_ms or 1)
        axes.spines[["top", "right", "left"]].set_visible(False)
        kinds = [k for k in _COLOURS if self.select(k)]
        handles = [Patch(color=_COLOURS[kind], label=kind) for kind in kinds]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize="small")
        return figure

    def _repr_png_(self) -> bytes:
        import io

        buffer = io.BytesIO()
        self.plot().savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


@contextmanager
def timeline() -> Iterator[Timeline]:
    """Record what host and GPUs do inside the `with`; the queues go on as they were."""
    from course_utils.simulator.control import world as current

    world = current()
    raw: list[Record] = []
    result = Timeline(world.spec.name, tuple(f"sim:{gpu.index}" for gpu in world.gpus))
    with world.lock:
        begin = world.host_ns
        world.recorders.append(raw)
    try:
        yield result
    finally:
        with world.lock:
            world.recorders = [recorder for recorder in world.recorders if recorder is not raw]
            end = max([world.host_ns, *(r.end_ns for r in raw)])
        result.total_ns = end - begin
        for r in raw:
            r = Record(
                r.kind, r.name, r.row, r.start_ns - begin, r.end_ns - begin, r.flops, r.nbytes, r.bound, r.direction
            )
            result.records.append(r)
