"""Race detector: unsynchronised accesses to memory of a GPU, though the values here are right.

Each stream does one thing after the other. Between two streams, or a stream and the host, an order comes from an event
that one records and the other waits for, `wait_stream`, `synchronize`, a blocking copy or a value that is read. Every
stream, and the host, knows up to which operation of each other stream it comes later (vector clocks: Mattern, Virtual
time and global states of distributed systems, 1989). Two uses of the same bytes, one of which writes, are a race where
neither knows the other. So are, as PyTorch's notes on CUDA semantics say, pinned memory that is overwritten before a
`non_blocking` copy from it is known to have run, and memory that goes back to the allocator of one stream while another
uses it, without `record_stream`. The order in which things happened to run here plays no part.

What is left out: writes by way of NumPy, graphs, messages between ranks, and backward passes, in which PyTorch's engine
orders streams itself.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from simgpu.device.tensor import SimTensor
from simgpu.ground import device_kind, places, sparse
from simgpu.ground.nodes import in_backward

Stream: TypeAlias = tuple[int, int]  # the GPU, and the number of the stream there
Known: TypeAlias = dict[Stream, int]  # up to which operation of each stream

_MOST_USES = 64  # that are remembered of one storage
_BLOCK_BYTES = 512  # in which PyTorch's allocator gives memory


class RaceError(RuntimeError):
    """Two uses of the same memory that nothing orders."""


class Race(NamedTuple):
    """Two uses of the same memory that nothing orders: the reader's lines, and what they do in a sentence."""

    kind: str  # "streams", "pinned" or "freed"
    first: str
    second: str
    text: str


class _Use(NamedTuple):
    stream: Stream
    number: int
    writes: bool
    start: int  # the bytes of the storage that are used
    end: int
    line: str

    def meets(self, start: int, end: int) -> bool:
        return self.start < end and start < self.end


class _Pinned(NamedTuple):
    memory: torch.Tensor  # the source of the copy, whose count of changes its views share
    version: int
    stream: Stream
    number: int
    line: str


class _Watch(TorchFunctionMode):
    """Looks after each function of PyTorch whether pinned memory was overwritten too early."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        self._look()
        return result


class Races:
    """Follows what each stream knows, and what uses which memory. `found` has the races, `mode` says how they are told:
    "error" raises `RaceError`, "warn" warns of the second line."""

    def __init__(self, mode: str, current: Callable[[int], int], tell: Callable[[Race], None]) -> None:
        """`current(gpu)` gives the current stream of a GPU; `tell` is called with each race that is only warned of."""
        self.mode, self.found = mode, list[Race]()
        self._current, self._tell = current, tell
        self._launched: dict[Stream, int] = defaultdict(int)
        self._knows: dict[Stream, Known] = defaultdict(dict)
        self._host: Known = {}
        self._uses: dict[int, list[_Use]] = {}
        self._homes: dict[int, Stream] = {}  # by storage: the stream that allocated it
        self._shared: dict[int, set[Stream]] = defaultdict(set)  # by storage: those that `record_stream` named
        self._freed: dict[Stream, list[tuple[_Use, int]]] = defaultdict(list)
        self._pins: list[_Pinned] = []
        self._watch = _Watch(self.look_at_pinned)

    def start(self) -> None:
        """Begin to watch this thread's accesses to pinned memory."""
        self._watch.__enter__()

    def stop(self) -> None:
        """Look no more."""
        self._pins.clear()
        self._watch.__exit__(None, None, None)

    # ---- what orders ---------------------------------------------------------------------------------------------
    def state_of(self, stream: Stream) -> Known:
        """Return the knowledge of a waiter for all work in a stream; an event keeps it."""
        return {**self._knows[stream], stream: self._launched[stream]}

    def order(self, stream: Stream, known: Known) -> None:
        """Order a stream's next work after the work before an event."""
        _join(self._knows[stream], known)

    def host_waits(self, streams: Iterable[Stream]) -> None:
        """Order the host after all work in these streams."""
        self.look_at_pinned()
        for stream in streams:
            _join(self._host, self.state_of(stream))

    def host_knows(self, known: Known) -> None:
        """Order the host after an event."""
        self.look_at_pinned()
        _join(self._host, known)

    def streams_of(self, gpu: int) -> list[Stream]:
        """Return the streams of a GPU that were used."""
        return [stream for stream in self._launched if stream[0] == gpu]

    def _launch(self, gpu: int) -> tuple[Stream, int]:
        stream = (gpu, self._current(gpu))
        known = self._knows[stream]
        _join(known, self._host)
        if in_backward():  # PyTorch's engine orders its streams
            _join(known, self._launched)
        self._launched[stream] += 1
        return stream, self._launched[stream]

    # ---- what uses memory ----------------------------------------------------------------------------------------
    def operation(self, gpu: int, reads: Iterable[SimTensor], writes: Iterable[SimTensor]) -> None:
        """Follow an operation in the current stream of a GPU."""
        stream, number = self._launch(gpu)
        line = places.place()
        for tensor in reads:
            self._use(tensor, stream, number, False, line)
        for tensor in writes:
            self._use(tensor, stream, number, True, line)

    def between(self, source: SimTensor, target: SimTensor) -> None:
        """Follow a copy from one GPU to another: the current streams of both wait for each other (Copy.cu)."""
        there, here = (source._index, self._current(source._index)), (target._index, self._current(target._index))
        self.order(there, self.state_of(here))
        self.operation(source._index, [source], [])
        self.order(here, self.state_of(there))
        self.operation(target._index, [], [target])

    def from_pinned(self, source: torch.Tensor, target: SimTensor) -> None:
        """Follow a copy for which the host does not wait."""
        self.operation(target._index, [], [target])
        stream = (target._index, self._current(target._index))
        self._pins.append(_Pinned(source, source._version, stream, self._launched[stream], places.place()))

    def look_at_pinned(self) -> None:
        """Tell of pinned memory that was overwritten while a copy from it may not have run."""
        if not self._pins:
            return
        pins, self._pins = self._pins, []
        for pin in pins:
            if self._host.get(pin.stream, 0) >= pin.number:
                continue
            if pin.memory._version == pin.version:
                self._pins.append(pin)
                continue
            second = places.place()
            text = (
                f"{second} overwrites pinned memory that the copy of {pin.line} may not have read yet. Let the host "
                "wait first: record an event behind the copy, and synchronize it."
            )
            self._say(Race("pinned", pin.line, second, text))

    def _use(self, tensor: SimTensor, stream: Stream, number: int, writes: bool, line: str) -> None:
        known = self._knows[stream]
        for part in sparse.parts(tensor._inner):
            start = int(part.storage_offset()) * part.itemsize
            end = start + _span(part)
            key = part.untyped_storage()._cdata
            uses = []
            for use in self._uses.get(key, ()):
                ordered = use.stream == stream or known.get(use.stream, 0) >= use.number
                if not ordered and (writes or use.writes) and use.meets(start, end):
                    self._say(_of_streams(use, stream, writes, line))
                covered = start <= use.start and use.end <= end
                if not (ordered and covered and (writes or (use.stream == stream and not use.writes))):
                    uses.append(use)
            self._uses[key] = [*uses[1 - _MOST_USES :], _Use(stream, number, writes, start, end, line)]

    # ---- what is given back --------------------------------------------------------------------------------------
    def made(self, key: int, gpu: int, nbytes: int) -> None:
        """Follow new memory, which the current stream allocates: it may be what it gave back before."""
        stream = (gpu, self._current(gpu))
        self._homes[key] = stream
        self._uses.pop(key, None)
        known = {**self._knows[stream]}
        _join(known, self._host)
        waiting = [(use, size) for use, size in self._freed[stream] if known.get(use.stream, 0) < use.number]
        self._freed[stream] = [(use, size) for use, size in waiting if _blocks(nbytes) > size]
        for use, size in waiting:
            if _blocks(nbytes) <= size:
                second = places.place()
                text = (
                    f"{second} may get memory that was freed while {_named(use.stream)} uses it: {use.line}. Say "
                    "tensor.record_stream(stream) before the tensor goes, or let its own stream wait for the other."
                )
                self._say(Race("freed", use.line, second, text))

    def gone(self, key: int, nbytes: int) -> None:
        """Follow memory that goes back to the stream that had allocated it."""
        uses, shared = self._uses.pop(key, []), self._shared.pop(key, set())
        home = self._homes.pop(key, None)
        if home is not None:
            others = [use for use in uses if use.stream != home and use.stream not in shared]
            self._freed[home] += [(use, _blocks(nbytes)) for use in others]

    def share(self, tensor: SimTensor, stream: Stream) -> None:
        """Follow `record_stream`: the memory is not given back before the stream is done."""
        for part in sparse.parts(tensor._inner):
            self._shared[part.untyped_storage()._cdata].add(stream)

    def _say(self, race: Race) -> None:
        if any(one[:3] == race[:3] for one in self.found) and self.mode != "error":
            return
        self.found.append(race)
        if self.mode == "error":
            raise RaceError(f"a race: {race.text}")
        self._tell(race)
        places.warn(f"a race: {race.text}")


def _join(known: Known, more: Known) -> None:
    for stream, number in more.items():
        if known.get(stream, 0) < number:
            known[stream] = number


def _span(tensor: torch.Tensor) -> int:
    """Return over how many bytes the elements of a tensor lie."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def _blocks(nbytes: int) -> int:
    return -(-nbytes // _BLOCK_BYTES) * _BLOCK_BYTES


def _named(stream: Stream) -> str:
    gpu, number = stream
    return f"{'stream ' + str(number) if number else 'the default stream'} of {device_kind.kind}:{gpu}"


def _of_streams(first: _Use, stream: Stream, writes: bool, line: str) -> Race:
    doing, done = "writes" if writes else "reads", "writes" if first.writes else "reads"
    text = (
        f"{line} {doing}, on {_named(stream)}, what {first.line} {done} on {_named(first.stream)}, and nothing orders "
        "the two. Let the second stream wait for the first: by stream.wait_stream, or by an event."
    )
    return Race("streams", first.line, line, text)
