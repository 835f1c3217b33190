"""Which bytes did this function have alive, when were they most, and whose were they then?"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from course_utils import plots, simulator
from course_utils.base import arguments
from course_utils.memory.budgets import fresh_peak
from course_utils.memory.ledger import Ledger, Record
from course_utils.memory.parts import Parts, bar, table_html, table_text
from course_utils.memory.storages import resolve

__all__ = ["Alive", "Measured", "Moment", "draw_timeline", "measure"]

PHASES = ("forward", "recomputation", "backward", "optimizer step")


class Moment(NamedTuple):
    """The state after one operator: its name, what the program was doing, and the bytes alive."""

    operator: str
    phase: str
    bytes: int


class Alive(NamedTuple):
    """One storage: its size, the tensor that it was made as, its owner, and the reader's line that made it."""

    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    owner: str
    made: str

    @classmethod
    def of(cls, record: Record) -> Alive:
        return cls(record.nbytes, record.shape, record.dtype, record.owner, record.made)


@dataclass(frozen=True, eq=False)
class Measured:
    """What a function had alive on a device.

    - `peak_bytes`: the most bytes alive at once among what it made, and what existed before and it used or freed;
    - `parts`: whose they were at the peak; `other_bytes`: what no tensor accounts for (0 except on CUDA);
    - `timeline`: a `Moment` for each operator that is no view; `peak_moment`: the one of the peak;
    - `at_peak`: every storage alive at the peak, the largest first;
    - `kept_bytes`: how many bytes more were alive at the end than at the start, `value` included;
    - `value`: what the function returned (as long as this object lives, so does it).
    """

    device: torch.device
    peak_bytes: int
    parts: Parts
    timeline: tuple[Moment, ...] = field(repr=False)
    at_peak: tuple[Alive, ...] = field(repr=False)
    kept_bytes: int
    value: Any = field(repr=False)

    @property
    def label(self) -> str:
        """ "simulated" on the simulated GPU, else "live"."""
        return "simulated" if self.device.type == "sim" else "live"

    @property
    def other_bytes(self) -> int:
        return self.peak_bytes - self.parts.total_bytes

    @property
    def peak_moment(self) -> Moment:
        """The moment of the peak: the first at which most bytes were alive."""
        return max(self.timeline, key=lambda moment: moment.bytes, default=Moment("nothing", "forward", 0))

    def _rows(self) -> list[tuple[str, list[str]]]:
        rows = [*self.parts.by_owner().items()] + ([("other", self.other_bytes)] if self.other_bytes else [])
        rows += [("peak", self.peak_bytes)]
        return [(name, [f"{size:,}", f"{size / max(self.peak_bytes, 1):.0%}"]) for name, size in rows]

    def _caption(self) -> str:
        moment = self.peak_moment
        return (
            f"peak {plots.bytes_text(self.peak_bytes)}, {self.label} on {self.device}, "
            f"reached in {moment.operator} ({moment.phase})"
        )

    def __str__(self) -> str:
        return f"{self._caption()}\n{table_text(['owner', 'bytes', 'share'], self._rows())}"

    def _repr_html_(self) -> str:
        return table_html(self._caption(), ["owner", "bytes", "share"], self._rows())

    def plot(self, title: str = "Bytes alive after each operator") -> Any:
        """Return a figure of the timeline, coloured by what the program was doing, the peak marked."""
        return draw_timeline(self.timeline, title, self.label)

    def bar(self, title: str = "Whose bytes are alive at the peak") -> Any:
        """Return a figure with one stacked bar."""
        return bar({"measured": (self.parts, self.label)}, title, {"measured": self.other_bytes})

    def table(self, rows: int = 10) -> AtPeak:
        """Return the largest storages alive at the peak, as a table."""
        return AtPeak(self.at_peak[: arguments.whole("rows", rows)])


_ALIVE = ["size", "shape", "format", "owner", "made in"]


@dataclass(frozen=True)
class AtPeak:
    """Storages with size, shape, owner and the line that made them."""

    storages: tuple[Alive, ...]

    def _rows(self) -> list[tuple[str, list[str]]]:
        return [
            (plots.bytes_text(one.bytes), [str(one.shape), str(one.dtype).removeprefix("torch."), one.owner, one.made])
            for one in self.storages
        ]

    def __str__(self) -> str:
        return table_text(_ALIVE, self._rows(), left=_ALIVE)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html("", _ALIVE, self._rows(), left=_ALIVE)


def measure(fn: Callable[[], Any], device: torch.device | str | None = None) -> Measured:
    """Call `fn` and return its peak of live tensor bytes on the device, whose they were, and a timeline.

    Counted is what `fn` makes, and what was there before and `fn` uses or frees; what else is alive is not. The peak
    comes from the simulated GPU's accounting, from the allocator's statistics on CUDA (there it includes rounding and
    the workspaces of libraries: `other_bytes`), and elsewhere from an account of living storages kept by weak
    references. A storage counts once, whatever views it has, as long as anything, autograd included, holds it.
    `device` is DEVICE (`devices.pick()`) unless given. What `fn` raises is passed on.
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function without arguments, not {fn!r}")
    device = resolve(device)
    gc.collect()
    ledger = Ledger(device)
    with _allocator_peak(device) as allocator:
        with ledger:
            value = fn()
        kept_bytes = ledger.change_bytes
        exact_bytes = allocator()
    return _result(device, ledger, exact_bytes, kept_bytes, value)


def _result(device: torch.device, ledger: Ledger, exact_bytes: int | None, kept_bytes: int, value: Any) -> Measured:
    used = [record for record in ledger.earlier if record.used or record.freed]
    tensor_bytes = sum(record.nbytes for record in used)
    if exact_bytes is None:
        peak_bytes = tensor_bytes + ledger.peak_bytes
    else:
        grain = 512 if device.type == "cuda" else 1  # the allocator rounds up to 512 bytes
        peak_bytes = sum(math.ceil(record.nbytes / grain) * grain for record in used) + exact_bytes
    at_peak = [record for record in ledger.at_peak if not record.before or record.used or record.freed]
    by_owner: dict[str, int] = {}
    for record in at_peak:
        by_owner[record.owner] = by_owner.get(record.owner, 0) + record.nbytes
    return Measured(
        device,
        peak_bytes,
        Parts.of(by_owner),
        tuple(Moment(name, phase, tensor_bytes + change) for name, phase, change in ledger.samples),
        tuple(sorted(map(Alive.of, at_peak), key=lambda one: -one.bytes)),
        kept_bytes,
        value,
    )


@contextmanager
def _allocator_peak(device: torch.device) -> Iterator[Callable[[], int | None]]:
    """Yield what returns how far the device's own statistics rose above the start; None where it keeps none."""
    if device.type == "sim":
        gpu = simulator.world().gpus[device.index or 0]
        with fresh_peak(gpu) as start_bytes:
            yield lambda: gpu.peak_bytes - start_bytes
    elif device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        start_bytes = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - start_bytes
    else:
        yield lambda: None


def draw_timeline(timeline: tuple[Moment, ...], title: str, label: str) -> Any:
    """Return a figure: bytes alive after each operator, coloured by phase."""
    fig, axes = plots.new(title, "operators so far", f"MiB alive, {label}", height_in=3.0)
    colours = dict(zip(PHASES, (plots.BLUE, plots.SKY, plots.RED, plots.GREEN), strict=True))
    sizes = [moment.bytes / 2**20 for moment in timeline]
    named = set()
    for start, stop, phase in _runs(timeline):
        edges, entry = range(start, stop + 1), None if phase in named else phase
        axes.stairs(sizes[start:stop], edges, fill=True, color=colours[phase], lw=0, label=entry)
        named.add(phase)
    if sizes:
        top = max(range(len(sizes)), key=sizes.__getitem__)
        right = top > len(sizes) / 2
        axes.plot(top + 0.5, sizes[top], "o", color=plots.INK, markersize=4)
        words = {"xytext": (-7 if right else 7, 1), "textcoords": "offset points", "ha": "right" if right else "left"}
        axes.annotate(plots.bytes_text(timeline[top].bytes), (top + 0.5, sizes[top]), **words)
        axes.set_ylim(0, max(sizes) * 1.12 or 1)
        axes.set_xlim(0, len(sizes))
        plots.legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.2)
    return fig


def _runs(timeline: tuple[Moment, ...]) -> Iterator[tuple[int, int, str]]:
    """Yield (start, stop, phase) for each stretch of operators in one phase."""
    start = 0
    for place in range(1, len(timeline) + 1):
        if place == len(timeline) or timeline[place].phase != timeline[start].phase:
            yield start, place, timeline[start].phase
            start = place
