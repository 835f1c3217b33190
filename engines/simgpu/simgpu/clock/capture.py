"""The work of one CUDA graph while it is captured, and what its streams know of one another.

CUDA lets a stream into a capture that waits for an event recorded in it, and no other dependency across the border.
Sources: cudaErrorStreamCaptureIsolation and its neighbours in CUDA's documentation of cudaError_t.
"""

from typing import NamedTuple, NoReturn

import torch

from simgpu.ground import device_kind
from simgpu.machine.prices import Cost

Stream = tuple[int, int]  # GPU and number
CAPTURING = "operation not permitted when stream is capturing"
CAPTURED_EVENT = "operation not permitted on an event last recorded in a capturing stream"
_ISOLATION = "dependency created on uncaptured work in another stream"
_IMPLICIT = "operation would make the legacy stream depend on a capturing blocking stream"
_UNJOINED = "capturing stream has unjoined work"


class Captured(NamedTuple):
    """Captured launch: a kernel with its cost, or a copy with its bytes."""

    gpu: int
    name: str
    engine: str  # "compute", or the direction of a copy
    length_ns: int
    cost: Cost
    bound: str


class Mark(NamedTuple):
    """An event recorded in a capture: how much work of each stream it stands behind."""

    capture: "Capture"
    known: dict[Stream, int]


class Capture:
    """Capture of a graph, from the stream in which it began, and those that fork from it."""

    def __init__(self, origin: Stream) -> None:
        self.origin, self.work = origin, list[Captured]()
        self.known: dict[Stream, dict[Stream, int]] = {origin: {}}  # by stream: how much work of each came before
        self.generators = set[int]()  # by `_cdata`, that the graph keeps account of

    def add(self, stream: Stream, work: Captured) -> None:
        """Note work that a program queues in `stream`."""
        self.work.append(work)
        if stream in self.known:
            self.known[stream][stream] = self.known[stream].get(stream, 0) + 1

    def mark(self, stream: Stream) -> Mark | None:
        """Return where an event in `stream` stands; None where that stream is not captured."""
        return Mark(self, dict(self.known[stream])) if stream in self.known else None

    def wait(self, stream: Stream, mark: Mark | None) -> None:
        """Make `stream` wait for an event: join the capture, or join another stream to it. Raises as CUDA does."""
        if mark is None or mark.capture is not self:
            if stream in self.known:
                fail(_ISOLATION)
            return
        if stream[1] == 0:
            fail(_IMPLICIT)
        own = self.known.setdefault(stream, {})
        own.update({other: max(count, own.get(other, 0)) for other, count in mark.known.items()})

    def end(self) -> None:
        """Raise where a stream has work that the one of the beginning did not wait for."""
        joined = self.known[self.origin]
        if any(own.get(stream, 0) > joined.get(stream, 0) for stream, own in self.known.items()):
            fail(_UNJOINED)


def fail(words: str, more: str = "") -> NoReturn:
    """Raise the error of CUDA's runtime."""
    raise torch.AcceleratorError(f"{device_kind.title()} error: {words}{more}")
