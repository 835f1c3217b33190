"""What did a program ask of its GPUs? Events without times, which can be played on any GPU (`replay`)."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from simgpu.clock.clock import Captured
from simgpu.clock.journal import Queue
from simgpu.ground import places
from simgpu.machine.prices import Cost

OPTIMIZER = "optimizer step"
GRADIENTS = "gradients"  # what clips and unscales them, between backward pass and optimizer

SMALL_BYTES = 4096  # copies up to that are numbers and indices, and do not grow with the batch


@dataclass(frozen=True, slots=True)
class Kernel:
    """An operator was queued in a stream (GPU, number); `phase` and `line` are those of the launch.

    Operations, which have an end, are numbered in their order.
    """

    number: float
    stream: tuple[int, int]
    name: str
    cost: Cost
    phase: str
    line: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy over the bus was queued."""

    number: float
    stream: tuple[int, int]
    direction: str
    nbytes: int
    pinned: bool
    line: str


@dataclass(frozen=True, slots=True)
class Graph:
    """What a CUDA graph had captured was queued by one launch."""

    number: float
    stream: tuple[int, int]
    work: tuple[Captured, ...]
    phase: str
    line: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a GPU to other ranks was queued behind what its stream had; `queue` names that of its group."""

    number: float
    stream: tuple[int, int]
    queue: Queue
    name: str
    kind: str
    nbytes: int
    most_bytes: int
    ranks: tuple[int, ...]
    line: str


@dataclass(frozen=True, slots=True)
class Hold:
    """What comes next in a stream waits for the end of the operation number `after`; -1: of none."""

    stream: tuple[int, int]
    after: float


@dataclass(frozen=True, slots=True)
class Wait:
    """The host waits for the end of the operation number `after`; -1: of none."""

    name: str
    after: float
    line: str


@dataclass(frozen=True, slots=True)
class Work:
    """The host is busy with something else."""

    name: str
    length_ns: int
    line: str


@dataclass(frozen=True, slots=True)
class Step:
    """A step ends."""


Event = Kernel | Copy | Graph | Message | Hold | Wait | Work | Step


class Log:
    """Grows by what the clock is asked for while it is `clock.log`. `stepping`: an optimizer's step is running."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.stepping = False
        self.unpinned: Counter[str] = Counter()  # lines that ask for a copy meanwhile, from memory that is not pinned
        self._backward = False  # whether this step has had a backward pass
        self._ends: dict[int, int] = {}  # operations by the time of their end on the clock that ran
        self._launched: list[int] = []  # of each operation: when the host had launched it

    def __len__(self) -> int:
        return len(self.events)

    def kernel(self, stream: tuple[int, int], name: str, cost: Cost, launched_ns: int, end_ns: int) -> None:
        event = Kernel(len(self._launched), stream, name, cost, self._phase(), places.place())
        self._operation(event, launched_ns, end_ns)

    def copy(
        self, stream: tuple[int, int], direction: str, nbytes: int, pinned: bool, launched_ns: int, end_ns: int
    ) -> None:
        event = Copy(len(self._launched), stream, direction, nbytes, pinned, places.place())
        self._operation(event, launched_ns, end_ns)

    def graph(self, stream: tuple[int, int], work: Sequence[Captured], launched_ns: int, end_ns: int) -> None:
        event = Graph(len(self._launched), stream, tuple(work), self._phase(), places.place())
        self._operation(event, launched_ns, end_ns)

    def message(
        self, stream: tuple[int, int], about: tuple[Queue, str, str, int, int, tuple[int, ...]], launched_ns: int,
        end_ns: int,
    ) -> None:  # fmt: skip
        """Note a message: `about` is its queue, name and kind, its bytes, the most of any rank's, and the ranks."""
        self._operation(Message(len(self._launched), stream, *about, places.place()), launched_ns, end_ns)

    def not_pinned(self, nbytes: int) -> None:
        """Note a copy that is to run meanwhile, but does not, unless it is so small that libraries make such ones."""
        if nbytes > SMALL_BYTES:
            self.unpinned[places.place()] += 1

    def hold(self, stream: tuple[int, int], until_ns: int) -> None:
        self.events.append(Hold(stream, self._ended(until_ns)))

    def wait(self, name: str, until_ns: int) -> None:
        self.events.append(Wait(name, self._ended(until_ns), places.place()))

    def work(self, name: str, length_ns: int) -> None:
        self.events.append(Work(name, length_ns, places.place()))

    def step(self) -> None:
        self.events.append(Step())
        self._backward = False

    def _operation(self, event: Event, launched_ns: int, end_ns: int) -> None:
        self._ends[end_ns] = len(self._launched)
        self._launched.append(launched_ns)
        self.events.append(event)

    def _ended(self, when_ns: int) -> int:
        """Return the operation that ended then, or the last that was launched by then."""
        return self._ends.get(when_ns, bisect_right(self._launched, when_ns) - 1)

    def _phase(self) -> str:
        phase = places.phase(self.stepping)
        if phase == "forward" and self._backward and not torch.is_grad_enabled():
            return GRADIENTS
        self._backward = self._backward or phase == "backward"
        return phase
