"""Measurement of a function's memory: its peak, when it was reached, and by owner."""

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

import simgpu
from course_utils import plots, tables
from course_utils.devices import resolve
from simgpu.accounting.ledger import Ledger, Moment, Parts, Record, by_owner


class Alive(NamedTuple):
    """One storage: its size, the tensor that it was made as, its owner, and the reader's line that made it."""

    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    owner: str
    made: str
    serial: int  # no other storage has it, although its address may be used again

    @classmethod
    def of(cls, record: Record) -> "Alive":
        return cls(record.nbytes, record.shape, record.dtype, record.owner, record.made, record.serial)


@dataclass(frozen=True, eq=False)
class Measured(tables.Table):
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
        return "simulated" if simgpu.is_simulated(self.device) else "live"

    @property
    def other_bytes(self) -> int:
        return self.peak_bytes - self.parts.total_bytes

    @property
    def peak_moment(self) -> Moment:
        """The moment of the peak: the first at which most bytes were alive."""
        return max(self.timeline, key=lambda moment: moment.bytes, default=Moment("nothing", "forward", 0))

    head = ("owner", "bytes", "share")

    def cells(self) -> list[list[str]]:
        other = [("other", self.other_bytes)] if self.other_bytes else []
        rows = [*by_owner(self.parts), *other, ("peak", self.peak_bytes)]
        return [[name, f"{size:,}", f"{size / max(self.peak_bytes, 1):.0%}"] for name, size in rows]

    def caption(self) -> str:
        moment = self.peak_moment
        size = plots.bytes_text(self.peak_bytes)
        return f"peak {size}, {self.label} on {self.device}, reached in {moment.operator} ({moment.phase})"


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
    sizes = Counter()
    for record in at_peak:
        sizes[record.owner] += record.nbytes
    return Measured(
        device,
        peak_bytes,
        Parts.of(sizes),
        tuple(moment._replace(bytes=tensor_bytes + moment.bytes) for moment in ledger.samples),
        tuple(sorted(map(Alive.of, at_peak), key=lambda one: -one.bytes)),
        kept_bytes,
        value,
    )


@contextmanager
def _allocator_peak(device: torch.device) -> Iterator[Callable[[], int | None]]:
    """Yield what returns how far the device's own statistics rose above the start; None where it keeps none."""
    if device.type == "sim":
        with simgpu.memory(device).fresh_peak() as rise:
            yield rise
    elif device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        start_bytes = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - start_bytes
    else:
        yield lambda: None
