"""What did host and GPUs do, and when? Records of the virtual clock, their totals and a picture."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from course_utils.simulator import control
from course_utils.simulator.model import Record

_COLOURS = {"launch": "#8da0cb", "kernel": "#1b7837", "copy": "#e08214", "wait": "#d9d9d9"}


@dataclass(eq=False, repr=False)
class Timeline:
    """Records between entering and leaving `timeline()`; times start at 0 when it was entered."""

    spec_name: str
    rows: tuple[str, ...]
    records: list[Record] = field(default_factory=list)
    total_ns: int = 0

    total_ms = property(lambda self: self.total_ns / 1e6, doc="Time until host and GPUs are done, in ms.")

    def select(self, kind: str, row: str | None = None) -> list[Record]:
        """Return the records of a kind (launch, kernel, copy, wait), of one row or all."""
        return [r for r in self.records if r.kind == kind and row in (None, r.row)]

    def busy_ms(self, row: str = "sim:0") -> float:
        """Return how long a GPU computed, or the host launched, in ms (overlapping streams count once)."""
        busy, until = 0, 0
        for record in sorted(self.select("launch" if row == "host" else "kernel", row), key=lambda r: r.start_ns):
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
                busy = f"{self.busy_ms(row):.3f} ms ({self.utilisation(row):.0%})"
                lines.append(f"  {row}: {len(kernels)} kernels, busy {busy}, {len(copies)} copies")
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
        handles = [Patch(color=colour, label=kind) for kind, colour in _COLOURS.items() if self.select(kind)]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize="small")
        return figure

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.plot().savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


@contextmanager
def timeline() -> Iterator[Timeline]:
    """Record what host and GPUs do inside the `with`; the queues go on as they were."""
    world = control.world()
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
        result.records += [replace(r, start_ns=r.start_ns - begin, end_ns=r.end_ns - begin) for r in raw]
