"""Replay of a log of events on a GPU, on a clock of its own."""

import threading
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from simgpu.clock.clock import Captured, Clock
from simgpu.clock.events import Copy, Event, Graph, Hold, Kernel, Mark, Message, Operation, Step, Wait, Work
from simgpu.clock.journal import Journal, Record
from simgpu.machine.machines import Machine


@dataclass(frozen=True)
class Played:
    """Times of events on a machine with `gpus` of its GPU.

    - `records`: those of the clock, from its start, each with the phase and the line of what launched it;
    - `total_ns`: when the host and all GPUs are done;
    - `ends_ns`: when each step is done, so that the difference of two is the time of a step; before the first one 0.
    """

    machine: Machine
    gpus: int
    records: tuple[Record, ...] = field(repr=False)
    total_ns: int
    ends_ns: tuple[int, ...]
    firsts: tuple[int, ...] = field(repr=False)  # of each step: its first record

    @property
    def steps(self) -> int:
        """How many steps have an end."""
        return len(self.ends_ns) - 1


def play(events: Iterable[Event], machine: Machine, gpus: int = 1) -> Played:
    """Return the times of a log's events on a machine with `gpus` of its GPU.

    It does not matter whether a program wrote the log while its clock ran, or a forecast did.
    """
    player = _Player(machine, gpus)
    for event in events:
        player.do(event)
    return Played(
        machine, gpus, tuple(_finished(player.records)), player.clock.done_ns(), tuple(player.ends_ns),
        tuple(player.firsts),
    )  # fmt: skip


def _finished(records: list[Record]) -> list[Record]:
    """Return the records, those of GPUs with the phase and the line of their launch."""
    launches = {record.number: record for record in records if record.kind == "launch"}
    launched_by = [launches.get(record.number, record) for record in records]
    return [
        record if launch is record else record.but(phase=launch.phase, line=launch.line)
        for record, launch in zip(records, launched_by, strict=True)
    ]


class _Player:
    """GPUs of its own that do again what was noted."""

    def __init__(self, machine: Machine, gpus: int) -> None:
        self._journal = _Journal()
        self.clock, self.records = Clock(gpus, machine, self._journal, threading.RLock()), self._journal.open()
        self.ends_ns: list[int] = [0]
        self.firsts: list[int] = [0]
        self._numbers: list[float] = []  # of the operations, and when each ended
        self._done: list[int] = []

    def do(self, event: Event) -> None:
        self._journal.line, self._journal.phase = getattr(event, "line", ""), getattr(event, "phase", "")
        match event:
            case Wait():
                self.clock.wait_until(self._end(event.after), event.name)
            case Work():
                self.clock.work(event.name, event.length_ns)
            case Step():
                self.ends_ns.append(self.clock.done_ns())
                self.firsts.append(len(self.records))
            case Hold():
                self.clock.hold(event.stream, self._end(event.after))
            case _:
                self._numbers.append(event.number)
                self._done.append(self._end_of(event))

    def _end_of(self, event: Operation) -> int:
        """Queue an operation and return when it ends."""
        clock, (index, number) = self.clock, event.stream
        clock.streams[index] = number
        match event:
            case Kernel():
                self._call(event.calls)
                clock.kernel(index, event.name, event.cost, event.phase, event.bare)
                return clock.free_ns[event.stream]
            case Copy():
                return clock.copy(index, event.direction, event.nbytes, pinned=event.pinned, blocking=False)
            case Graph():
                self._call(event.calls)
                clock.replay(index, [self._priced(captured) for captured in event.work])
                return clock.free_ns[event.stream]
            case Message():
                launch = clock.launch(index, event.operator)._replace(line=event.line)
                parts = event.name, event.queue, event.kind, event.nbytes, event.ranks, launch
                return clock.exchange(*parts, most_bytes=event.most_bytes, index=index)
            case Mark():
                return clock.queue_ns(index, number)

    def _call(self, calls: Iterable[tuple[str, int]]) -> None:
        for kind, times in calls:
            self.clock.called(kind, times)

    def _end(self, number: float) -> int:
        """Return when an operation ended. What stands for several has the number of the last of them."""
        index = min(bisect_left(self._numbers, number), len(self._numbers) - 1)
        return 0 if number < 0 or index < 0 else self._done[index]

    def _priced(self, captured: Captured) -> Captured:
        """Return a part of a graph with the time that this GPU takes for it."""
        if captured.engine != "compute":
            nbytes, peer = captured.cost.nbytes, captured.engine == "D2D"
            return captured._replace(length_ns=self.clock.rates.copy_ns(nbytes, pinned=True, peer=peer))
        length_ns, bound = self.clock.rates.kernel(captured.cost)
        return captured._replace(length_ns=length_ns, bound=bound)


class _Journal(Journal):
    """A journal that is told line and phase, where that of a running program looks for them."""

    phase = line = ""

    def launch(self, name: str, engine: str, start_ns: int, end_ns: int) -> None:
        self.launches += 1
        number, phase, line = self.launches, self.phase, self.line
        self.note(Record("launch", name, "host", start_ns, end_ns, number=number, phase=phase, line=line))

    def host(self, kind: str, name: str, start_ns: int, end_ns: int) -> None:
        self.note(Record(kind, name, "host", start_ns, end_ns, line=self.line))
