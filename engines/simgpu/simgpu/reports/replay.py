"""How long would the events of a log take on a GPU? They run again, on a clock of their own."""

import threading
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace

from simgpu.clock.clock import Captured, Clock
from simgpu.clock.events import Copy, Event, Graph, Hold, Kernel, Message, Step, Wait, Work
from simgpu.clock.journal import Journal, Record
from simgpu.device.timelines import Timeline
from simgpu.machine.machines import Machine


class Replay:
    """What a log's events took on a machine with `gpus` of its GPU.

    `records` are those of the clock, from its start; `ends_ns` says when each step was done, by the host and on all
    GPUs: the difference of two is the time of a step.
    """

    def __init__(self, events: Iterable[Event], machine: Machine, gpus: int = 1) -> None:
        self.machine, self.gpus = machine, gpus
        self._journal = _Journal()
        self._clock = Clock(gpus, machine, self._journal, threading.RLock())
        self.records = self._journal.open()
        self.ends_ns: list[int] = [0]
        self._firsts: list[int] = [0]  # of each step: its first record
        self._numbers: list[float] = []  # of the operations, and when each ended
        self._done: list[int] = []
        for event in events:
            self._do(event)
        self.total_ns = self._clock.done_ns()

    @property
    def steps(self) -> int:
        """How many steps have an end."""
        return len(self.ends_ns) - 1

    def timeline(self, first: int = 0, last: int | None = None) -> Timeline:
        """Return the records of the steps from number `first` (from 0) to before `last`, and the time that they took.

        Times count from the end of the step before. What the host launched ahead of that has times below 0.
        """
        last = self.steps if last is None else last
        begin_ns, end_ns = self.ends_ns[first], self.ends_ns[last]
        records = self.records[self._firsts[first] : self._firsts[last]]
        return self._timeline(records, begin_ns, end_ns)

    def whole(self) -> Timeline:
        """Return everything that was played."""
        return self._timeline(self.records, 0, self.total_ns)

    def _timeline(self, records: list[Record], begin_ns: int, end_ns: int) -> Timeline:
        of_launch = {r.number: (r.phase, r.line) for r in records if r.kind == "launch"}
        found = Timeline(self.machine, tuple(f"sim:{index}" for index in range(self.gpus)))
        found.total_ns, found.begin_ns = end_ns - begin_ns, begin_ns
        for one in records:
            phase, line = of_launch.get(one.number, (one.phase, one.line))
            times = {"start_ns": one.start_ns - begin_ns, "end_ns": one.end_ns - begin_ns}
            found.records.append(replace(one, **times, phase=phase, line=line))
        return found

    def _do(self, event: Event) -> None:
        clock, journal = self._clock, self._journal
        journal.line, journal.phase = getattr(event, "line", ""), getattr(event, "phase", "")
        # what the host does alone is in no stream, and changes none
        index, stream = (0, clock.streams[0]) if isinstance(event, Wait | Work | Step) else event.stream
        clock.streams[index] = stream
        match event:
            case Kernel():
                clock.kernel(index, event.name, event.cost)
                self._ended(event, clock.free_ns[event.stream])
            case Copy():
                arrives = clock.copy(index, event.direction, event.nbytes, pinned=event.pinned, blocking=False)
                self._ended(event, arrives)
            case Graph():
                clock.replay(index, [self._priced(one) for one in event.work])
                self._ended(event, clock.free_ns[event.stream])
            case Message():
                launch = clock.launch(index, event.name)._replace(line=event.line)
                parts = event.name, event.queue, event.kind, event.nbytes, event.ranks, launch
                self._ended(event, clock.exchange(*parts, most_bytes=event.most_bytes, index=index))
            case Hold():
                clock.hold(event.stream, self._end(event.after))
            case Wait():
                clock.wait_until(self._end(event.after), event.name)
            case Work():
                clock.work(event.name, event.length_ns)
            case Step():
                self.ends_ns.append(clock.done_ns())
                self._firsts.append(len(self.records))

    def _ended(self, event: Kernel | Copy | Graph | Message, when_ns: int) -> None:
        self._numbers.append(event.number)
        self._done.append(when_ns)

    def _end(self, number: float) -> int:
        """Return when an operation ended. What stands for several has the number of the last of them."""
        place = min(bisect_left(self._numbers, number), len(self._numbers) - 1)
        return 0 if number < 0 or place < 0 else self._done[place]

    def _priced(self, one: Captured) -> Captured:
        """Return a part of a graph with the time that this GPU takes for it."""
        if one.engine != "compute":
            return one._replace(length_ns=self._clock.rates.copy_ns(one.cost.nbytes, pinned=True))
        length_ns, bound = self._clock.rates.kernel(one.cost)
        return one._replace(length_ns=length_ns, bound=bound)


class _Journal(Journal):
    """A journal that is told line and phase, where that of a running program looks for them."""

    phase = line = ""

    def launch(self, name: str, engine: str, start_ns: int, end_ns: int) -> None:
        self.launches += 1
        number, phase, line = self.launches, self.phase, self.line
        self.note(Record("launch", name, "host", start_ns, end_ns, number=number, phase=phase, line=line))

    def host(self, kind: str, name: str, start_ns: int, end_ns: int) -> None:
        self.note(Record(kind, name, "host", start_ns, end_ns, line=self.line))
