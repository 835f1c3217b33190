"""Events that a program asks of its GPUs, without times; `player.play` plays them on any GPU.

A program on the simulated GPU writes them while its clock runs, a forecast without one; both are played the same way.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from simgpu.clock.clock import Captured
from simgpu.clock.journal import Queue
from simgpu.ground import nodes, places
from simgpu.machine.prices import Cost

OPTIMIZER = "optimizer step"
LOADING, FIRST_BATCH = "data loading", "first batch of a loader"  # what the host is busy with
GRADIENTS = "gradients"  # what clips and unscales them, between backward pass and optimizer

SMALL_BYTES = 4096  # copies up to that are numbers and indices, and do not grow with the batch


@dataclass(frozen=True, slots=True)
class Kernel:
    """An operator was queued in a stream (GPU, number); `phase` and `line` are those of the launch.

    Operations, which have an end that others can wait for, are numbered in their order. `calls` is what the host did
    since the operator before that queues nothing, so many of each of `clock.HOST_ONLY_WORK`.
    """

    number: float
    stream: tuple[int, int]
    name: str
    cost: Cost
    phase: str
    line: str
    calls: tuple[tuple[str, int], ...] = ()
    bare: bool = False  # see `ground.surroundings`


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
    """Replay of a CUDA graph: all that it captured, queued by one launch."""

    number: float
    stream: tuple[int, int]
    work: tuple[Captured, ...]
    phase: str
    line: str
    calls: tuple[tuple[str, int], ...] = ()  # as those of `Kernel`


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a GPU to other ranks was queued behind what its stream had; `queue` names that of its group.

    `operator` is what the host launched. `nbytes` is what this rank gives; `most_bytes` says how long the message
    takes, where that is more: what it gets, or the part of another rank.
    """

    number: float
    stream: tuple[int, int]
    queue: Queue
    operator: str
    name: str
    kind: str
    nbytes: int
    most_bytes: int
    ranks: tuple[int, ...]
    line: str


@dataclass(frozen=True, slots=True)
class Mark:
    """An operation that takes no time and that the host need not launch: it ends when its stream has got there."""

    number: float
    stream: tuple[int, int]


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


Operation = Kernel | Copy | Graph | Message | Mark
Event = Operation | Hold | Wait | Work | Step


class Log:
    """Grows by what a program asks for, each event with its phase and line. `stepping`: an optimizer's step is running,
    `closure`: it was given one.

    What notes an operation returns its number, which `hold` and `wait` are told. A clock knows times instead: it says
    of each operation when it was launched and ends (`took`), and asks which one had ended at a time (`ended_by`).
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.stepping = self.closure = False
        self.unpinned: Counter[str] = Counter()  # lines that ask for a copy meanwhile, from memory that is not pinned
        self._backward = False  # whether this step has had a backward pass
        self._calls: Counter[str] = Counter()  # since the last operator
        self._number = 0  # of the next operation
        self.now_s: Callable[[], float] = float  # a clock, and when it noted the last operation
        self.last_s = 0.0
        self._first = 0  # the first one that is in the events
        self._ends: dict[int, int] = {}  # operations by the time of their end on the clock that runs
        self._launched: list[int] = []  # of each operation: when the host had launched it

    def __len__(self) -> int:
        return len(self.events)

    @property
    def number(self) -> int:
        """The number that the next operation gets."""
        return self._number

    def clear(self) -> None:
        """Forget the events. What comes waits for none of them: they are done when it begins."""
        self.events.clear()
        self._calls.clear()
        self._first, self._backward = self._number, False

    # ---- operations ----------------------------------------------------------------------------------------------
    def kernel(self, stream: tuple[int, int], name: str, cost: Cost, bare: bool = False) -> int:
        where = self._phase(), places.place(), self._called(), bare
        return self._add(Kernel(self._number, stream, name, cost, *where))

    def copy(self, stream: tuple[int, int], direction: str, nbytes: int, pinned: bool) -> int:
        return self._add(Copy(self._number, stream, direction, nbytes, pinned, places.place()))

    def graph(self, stream: tuple[int, int], work: Sequence[Captured]) -> int:
        return self._add(Graph(self._number, stream, tuple(work), self._phase(), places.place(), self._called()))

    def message(
        self, stream: tuple[int, int], queue: Queue, operator: str, name: str, kind: str, nbytes: int, most_bytes: int,
        ranks: Sequence[int],
    ) -> int:  # fmt: skip
        """Record a message; see `Message` for the arguments."""
        what = queue, operator, name, kind, nbytes, most_bytes, tuple(ranks)
        return self._add(Message(self._number, stream, *what, places.place()))

    def mark(self, stream: tuple[int, int]) -> int:
        return self._add(Mark(self._number, stream))

    def called(self, kind: str, times: int = 1) -> None:
        """Note that the host did what queues nothing, one of `clock.HOST_ONLY_WORK`; the next operator has it."""
        self._calls[kind] += times

    def _called(self) -> tuple[tuple[str, int], ...]:
        """Return the host-only work since the last operator, and reset its counts."""
        calls = tuple(self._calls.items())
        self._calls.clear()
        return calls

    def _add(self, event: Operation) -> int:
        self.events.append(event)
        self._number, self.last_s = self._number + 1, self.now_s()
        return self._number - 1

    def took(self, launched_ns: int, end_ns: int) -> None:
        """Say when the host had launched the operation that was noted last, and when it ends."""
        self._ends[end_ns] = self._number - 1
        self._launched.append(launched_ns)

    def ended_by(self, when_ns: int) -> int:
        """Return the operation that ended at a time, or the last that was launched by then; -1 for none."""
        return self._ends.get(when_ns, bisect_right(self._launched, when_ns) - 1)

    # ---- what is no operation ------------------------------------------------------------------------------------
    def hold(self, stream: tuple[int, int], after: int) -> None:
        self.events.append(Hold(stream, self._known(after)))

    def wait(self, name: str, after: int) -> None:
        self.events.append(Wait(name, self._known(after), places.place()))

    def work(self, name: str, length_ns: int) -> None:
        self.events.append(Work(name, length_ns, places.place()))

    def step(self) -> None:
        self.events.append(Step())
        self._backward = False

    def not_pinned(self, nbytes: int) -> None:
        """Note a copy that is to run meanwhile, but does not, unless it is so small that libraries make such ones."""
        if nbytes > SMALL_BYTES:
            self.unpinned[places.place()] += 1

    def _known(self, number: int) -> int:
        return number if number >= self._first else -1

    def _phase(self) -> str:
        phase = nodes.phase(self.stepping, self.closure)
        if phase == "forward" and self._backward and not torch.is_grad_enabled():
            return GRADIENTS
        self._backward = self._backward or phase == "backward"
        return phase
