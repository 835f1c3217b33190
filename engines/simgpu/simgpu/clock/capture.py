"""The work of one CUDA graph while it is captured, and what its streams know of one another.

CUDA lets a stream into a capture that waits for an event recorded in it, and no other dependency across the border.
Sources: cudaErrorStreamCaptureIsolation and its neighbours in CUDA's documentation of cudaError_t.
"""

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

import torch

from simgpu.ground import device_kind
from simgpu.machine.prices import Cost

Stream = tuple[int, int]  # GPU and number
CAPTURING = "operation not permitted when stream is capturing"
CAPTURED_EVENT = "operation not permitted on an event last recorded in a capturing stream"
OF_DEFAULT_STREAM = "simgpu: of the default stream"  # in the metadata of autograd's nodes that ran there before
_ISOLATION = "dependency created on uncaptured work in another stream"
_IMPLICIT = "operation would make the legacy stream depend on a capturing blocking stream"
_STALE = """During CUDA graph capture, autograd node '{}' has a stale reference to the default stream (stream 0) from \
warmup. This will invalidate the capture because cudaStreamWaitEvent on the default stream pulls a non-capturing \
stream into the graph.
To fix, either:
  (a) Run warmup on the same stream that capture will use, or
  (b) Delete references to the loss / autograd graph (e.g. `del loss`) before capture, or
  (c) Call torch.autograd.graph.set_override_stale_capture_stream(True) to automatically redirect stale nodes to the \
capturing stream."""
_UNJOINED = "capturing stream has unjoined work"
_BROKEN = "operation failed due to a previous error during capture"


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

    def __init__(self, origin: Stream, mode: str) -> None:
        self.origin, self.work = origin, list[Captured]()
        self.mode, self.thread, self._is_broken = mode, threading.get_ident(), False
        self.known: dict[Stream, dict[Stream, int]] = {origin: {}}  # by stream: how much work of each came before
        self.generators = set[int]()  # by `_cdata`, that the graph keeps account of
        self.pool: tuple[int, int] = (0, 0)  # its memory's
        self.external: list[tuple[int, Any]] = []  # events that each replay records anew, behind so much work

    def binds(self) -> bool:
        """Return whether this thread may not wait for a GPU: by the mode (cudaStreamCaptureMode), others may."""
        return self.mode == "global" or threading.get_ident() == self.thread

    def holds(self, stream: Stream) -> bool:
        """Return whether this thread's work in `stream` is captured."""
        return threading.get_ident() == self.thread and stream in self.known

    def fail(self, words: str, more: str = "") -> NoReturn:
        """Raise the error of CUDA's runtime, after which the capture fails."""
        self._is_broken = True
        fail(words, more)

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
                self.fail(_ISOLATION)
            return
        if stream[1] == 0:
            self.fail(_IMPLICIT)
        own = self.known.setdefault(stream, {})
        own.update({other: max(count, own.get(other, 0)) for other, count in mark.known.items()})

    def end(self) -> None:
        """Raise after an error, and where a stream has work that the one of the beginning did not wait for."""
        if self._is_broken:
            fail(_BROKEN)
        joined = self.known[self.origin]
        if any(own.get(stream, 0) > joined.get(stream, 0) for stream, own in self.known.items()):
            fail(_UNJOINED)


def refuse_stale(nodes: Iterable[Any]) -> None:
    """Raise where a backward pass in a capture meets a node that works on the default stream, as it did in a warm-up.

    InputBuffer::add in torch/csrc/autograd/input_buffer.cpp says so from PyTorch 2.13 on, CUDA itself before.
    """
    overrides = getattr(torch._C, "_override_stale_capture_stream", None)
    stale = [node.name() for node in nodes if OF_DEFAULT_STREAM in node.metadata]
    if not stale:
        return
    if overrides is None:
        fail(_IMPLICIT)
    if not overrides():
        raise RuntimeError(_STALE.format(stale[0]))


def fail(words: str, more: str = "") -> NoReturn:
    """Raise the error of CUDA's runtime."""
    raise torch.AcceleratorError(f"{device_kind.title()} error: {words}{more}")
