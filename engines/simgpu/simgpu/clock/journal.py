"""Journal of the virtual clock: records for every subscriber."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from simgpu.ground import nodes, places
from simgpu.machine.prices import Cost

Queue: TypeAlias = tuple[str | int, ...]  # of messages: (group,), or of two ranks (direction, group, the other)


@dataclass(frozen=True)
class Record:
    """One thing that happened; times in ns of the virtual clock.

    `kind` is launch, wait, work (`host_work`) or range (`torch.profiler.record_function`) on the host, kernel or copy
    on a GPU, message between ranks, or waits, where a message waits for other ranks. All but those of the host have the
    `number`, `phase` and `line` (the reader's) of the launch that queued them.
    """

    kind: str
    name: str
    row: str  # "host" or "sim:0", "sim:1", …
    start_ns: int
    end_ns: int
    flops: int = 0
    nbytes: int = 0
    bound: str = ""  # compute, bandwidth, latency or bus; of a message ring or tree
    direction: str = ""  # H2D, D2H, D2D for copies
    number: int = 0  # of the launch, from 1
    stream: int = 0
    phase: str = ""  # forward, backward, recomputation, optimizer step; of kernels, where it is known
    line: str = ""  # "train.py:12: y = model(x)"

    duration_ns = property(lambda self: self.end_ns - self.start_ns)

    def but(self, **changes: Any) -> "Record":
        """Return the same record but for `changes`, as `dataclasses.replace`, which takes five times as long."""
        other = object.__new__(Record)
        other.__dict__.update(self.__dict__, **changes)
        return other


class Journal:
    """Appends each record to all `readers`. Whoever notes something looks first whether there are any."""

    def __init__(self) -> None:
        self.readers: list[list[Record]] = []
        self.launches = 0  # while somebody reads
        self._tracks: dict[Queue, int] = {}  # numbers of the queues of messages in traces

    def open(self) -> list[Record]:
        """Return a new reader, which grows until `close`."""
        records: list[Record] = []
        self.readers.append(records)
        return records

    def close(self, records: list[Record]) -> None:
        """Reset a reader to the present state."""
        self.readers = [reader for reader in self.readers if reader is not records]

    def note(self, record: Record) -> None:
        for reader in self.readers:
            reader.append(record)

    def launch(self, name: str, engine: str, start_ns: int, end_ns: int) -> None:
        """Note that the host launched work for an engine, in which phase of a step and which line."""
        self.launches += 1
        doing = nodes.phase() if engine == "compute" else ""
        phase = "" if doing == "forward" and not torch.is_grad_enabled() else doing
        number, line = self.launches, places.place()
        self.note(Record("launch", name, "host", start_ns, end_ns, number=number, phase=phase, line=line))

    def host(self, kind: str, name: str, start_ns: int, end_ns: int) -> None:
        """Note that the host waited, worked, or was in a range."""
        line = "" if kind == "range" else places.place()
        self.note(Record(kind, name, "host", start_ns, end_ns, line=line))

    def kernel(self, name: str, cost: Cost, gpu: int, stream: int, start_ns: int, end_ns: int, bound: str) -> None:
        """Record the work that the last launch queued on a GPU."""
        sizes = cost.flops, cost.nbytes + cost.extra_bytes, bound
        number = self.launches
        self.note(Record("kernel", name, f"sim:{gpu}", start_ns, end_ns, *sizes, number=number, stream=stream))

    def copy(self, direction: str, nbytes: int, gpu: int, stream: int, start_ns: int, end_ns: int) -> None:
        """Note a copy that the last launch queued on a GPU."""
        name, row, number = f"copy {direction}", f"sim:{gpu}", self.launches
        sizes = 0, nbytes, "bus", direction
        self.note(Record("copy", name, row, start_ns, end_ns, *sizes, number=number, stream=stream))

    def message(
        self, name: str, nbytes: int, way: str, queue: Queue, times_ns: tuple[int, int, int], number: int, line: str,
        gpu: int = 0,
    ) -> None:  # fmt: skip
        """Note a message: when this rank had come, when the last one had, and when it ended."""
        came_ns, start_ns, end_ns = times_ns
        track, row = self._tracks.setdefault(queue, 2000 + len(self._tracks)), f"sim:{gpu}"
        if start_ns > came_ns:
            what = f"{name}: wait for others"
            self.note(Record("waits", what, row, came_ns, start_ns, number=number, stream=track, line=line))
        sizes = 0, nbytes, way
        self.note(Record("message", name, row, start_ns, end_ns, *sizes, number=number, stream=track, line=line))
