"""Timelines of host and GPUs: records of the virtual clock, totals, gaps, and a trace."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch.autograd.profiler import record_function

from simgpu.clock import chrome_trace, evidence
from simgpu.clock.journal import Record
from simgpu.clock.player import Played
from simgpu.device import communication, enabling, state
from simgpu.machine.machines import Machine

_STEP = "Optimizer.step#"  # how PyTorch itself names the range of an optimizer's step


class Gap(NamedTuple):
    """A time in which a GPU computed nothing, the reader's line that kept it waiting, and what that line did."""

    start_ns: int
    duration_ns: int
    line: str  # "train.py:12: loss.item()"; "" where it is none of the reader's
    cause: str


@dataclass(eq=False, repr=False)
class Timeline:
    """Records between entering and leaving `timeline()`; times start at 0 when it was entered."""

    machine: Machine  # of the clock
    rows: tuple[str, ...]
    records: list[Record] = field(default_factory=list)
    total_ns: int = 0
    begin_ns: int = 0  # of the clock, when it was entered

    spec_name = property(lambda self: self.machine.gpu.name, doc="The name of the GPU.")

    @classmethod
    def of(cls, played: Played, first: int | None = None, last: int | None = None) -> "Timeline":
        """Return the timeline of played events: all, or the steps `first` (from 0) to before `last`.

        Times of steps count from the end of the step before: what the host launched ahead of it has times below 0.
        """
        records, begin_ns, end_ns = played.records, 0, played.total_ns
        if first is not None and last is not None:
            records = records[played.firsts[first] : played.firsts[last]]
            begin_ns, end_ns = played.ends_ns[first], played.ends_ns[last]
        timeline = cls(played.machine, tuple(f"sim:{index}" for index in range(played.gpus)))
        timeline.total_ns, timeline.begin_ns = end_ns - begin_ns, begin_ns
        timeline.records = [
            record.but(start_ns=record.start_ns - begin_ns, end_ns=record.end_ns - begin_ns) for record in records
        ]
        return timeline

    total_ms = property(lambda self: self.total_ns / 1e6, doc="Time until host and GPUs are done, in ms.")

    def select(self, kind: str, row: str | None = None) -> list[Record]:
        """Return the records of a kind (launch, kernel, copy, message, waits, wait), of one row or all."""
        return [r for r in self.records if r.kind == kind and row in (None, r.row)]

    def busy_ms(self, row: str = "sim:0") -> float:
        """Return how long a GPU computed, or the host launched, in ms (overlapping streams count once)."""
        busy, until = 0, 0
        for record in sorted(self.select("launch" if row == "host" else "kernel", row), key=lambda r: r.start_ns):
            busy += max(0, record.end_ns - max(record.start_ns, until))
            until = max(until, record.end_ns)
        return busy / 1e6

    def utilisation(self, row: str = "sim:0") -> float:
        """Return the share of the total time, 0 to 1, in which a GPU computed."""
        return self.busy_ms(row) * 1e6 / self.total_ns if self.total_ns else 0.0

    @property
    def evidence(self) -> evidence.Evidence:
        """How far the clock is from published runs of this regime; as text the label of all times in here."""
        return evidence.of(self.records, self.machine)

    @property
    def waited_ms(self) -> float:
        """Time that the host spent waiting for GPUs, in ms."""
        return sum(r.duration_ns for r in self.select("wait")) / 1e6

    def gaps(self, row: str = "sim:0") -> list[Gap]:
        """Return when a GPU computed nothing, in order, each with the line of the host's that caused it.

        Where the host was late, that is what it did meanwhile: waiting, work of its own (`host_work`), else launching.
        After a wait the queue is empty, so the launch that follows is the wait's fault. Where the kernel was launched
        in time, it is the copy or the other GPU that it needed, unless that began late: then what the host did before.
        Gaps and `busy_ms` add up to the total time; a GPU that computed nothing at all has none.
        """
        kernels = sorted(self.select("kernel", row), key=lambda r: r.start_ns)
        host = [r for r in self.records if r.row == "host" and r.kind != "range"]
        launched = {r.number: r.end_ns for r in self.select("launch")}
        ends: dict[int, list[Record]] = defaultdict(list)
        for record in self.records:
            if record.row != "host":
                ends[record.end_ns].append(record)
        gaps, until = [], 0
        for kernel in (*kernels, None) if kernels else ():
            start = self.total_ns if kernel is None else kernel.start_ns
            if start > until:
                late = host[-1].end_ns if kernel is None else launched[kernel.number]
                gaps.append(self._blame(until, start, host, late, kernel, launched, ends))
            until = until if kernel is None else max(until, kernel.end_ns)
        return gaps

    def _blame(
        self, start: int, end: int, host: list[Record], asked: int, kernel: Record | None, launched: dict[int, int],
        ends: dict[int, list[Record]],
    ) -> Gap:  # fmt: skip
        """Return the cause of a gap that ended with `kernel`, or with the timeline, launched by the host at `asked`.

        `ends` has what the GPUs did, by the time of its end.
        """
        until = end
        if asked < end:  # in time, so that it was no fault of the host's: what ended when the kernel could begin?
            needed = ends.get(end, [])
            why = max(needed, key=lambda r: r.kind == "copy", default=kernel)
            first = why  # of the copies that ended when the next one began
            while before := [r for r in _copies_that_end(ends, first) if r.end_ns > r.start_ns]:
                first = before[0]
            late = first is not None and launched.get(first.number) == first.start_ns > (start + end) / 2
            if why is not None and not late:
                return Gap(start, end - start, why.line, f"needs {why.name} on {why.row}" if needed else "held back")
            until = first.start_ns if first is not None and late else end
        spent, last = Counter(), None
        for index in range(bisect_left(host, start, key=lambda r: r.end_ns), len(host)):
            record = host[index]
            if record.start_ns >= until:
                break
            last = last if record.kind == "launch" else record
            blamed = last or record
            cause = "launches" if blamed.kind == "launch" else blamed.name
            spent[blamed.line, cause] += min(record.end_ns, until) - max(record.start_ns, start)
        line, cause = max(spent, key=lambda each: spent[each], default=("", "nothing to do"))
        return Gap(start, end - start, line, cause)

    def phases(self, row: str = "sim:0") -> list[tuple[str, int, int]]:
        """Return the parts of training steps that a GPU (or the host) went through: (name, start ns, end ns).

        Names are forward, backward, recomputation and optimizer step. Without a backward pass there are none.
        """
        known = [r for r in self.select("launch" if row == "host" else "kernel", row) if r.phase]
        phases = []
        for record in known if any(r.phase == "backward" for r in self.records) else ():
            if phases and phases[-1][0] == record.phase:
                phases[-1] = (record.phase, phases[-1][1], max(phases[-1][2], record.end_ns))
            else:
                phases.append((record.phase, record.start_ns, record.end_ns))
        return phases

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write a file that Perfetto (https://ui.perfetto.dev) opens, in the form and with the name of the profiler's.

        Host, queues, each stream and each copy engine are tracks; arrows lead from launches to kernels. The file is the
        same on every machine, and says that it is simulated.
        """
        Path(path).write_text(chrome_trace.text([self]), encoding="utf-8", newline="\n")

    def __str__(self) -> str:
        waited = f"host waits {self.waited_ms:.3f} ms"
        lines = [f"{self.spec_name}: {self.total_ms:.3f} ms in all, {waited}", f"  {self.evidence}"]
        for row in self.rows:
            kernels, copies = self.select("kernel", row), self.select("copy", row)
            if kernels or copies:
                busy = f"{self.busy_ms(row):.3f} ms ({self.utilisation(row):.0%})"
                lines.append(f"  {row}: {len(kernels)} kernels, busy {busy}, {len(copies)} copies")
        return "\n".join(lines)

    __repr__ = __str__


def _copies_that_end(ends: dict[int, list[Record]], when: Record | None) -> list[Record]:
    """Return the copies that end when a record begins."""
    return [] if when is None else [r for r in ends.get(when.start_ns, []) if r.kind == "copy"]


class ClusterTimeline:
    """Timeline of all ranks of a simulated cluster, on one clock.

    - `ranks`: the Timeline of each rank, in order; its `begin_ns` says when it began. The clocks of a launch start
      together, so that timelines which ranks recorded themselves (`simgpu.timeline()`) and returned fit too;
    - `total_ns`: from the first begin to the last end.

    Raises ValueError where there is none.
    """

    def __init__(self, ranks: list[Timeline]) -> None:
        if not ranks:
            raise ValueError("a cluster's timeline needs that of one rank at least")
        self.ranks = list(ranks)
        self.first_ns = min(timeline.begin_ns for timeline in ranks)
        self.total_ns = max(timeline.begin_ns + timeline.total_ns for timeline in ranks) - self.first_ns

    total_ms = property(lambda self: self.total_ns / 1e6, doc="Time until the last rank is done, in ms.")

    @property
    def evidence(self) -> evidence.Evidence:
        """How far the clock is from published runs on several GPUs; as text the label of all times in here."""
        records = (record for timeline in self.ranks for record in timeline.records)
        return evidence.of(records, self.ranks[0].machine, len(self.ranks))

    @property
    def idle(self) -> float:
        """The share of the time, 0 to 1, in which GPUs computed nothing, over all of them: in a pipeline its bubble."""
        return 1 - sum(timeline.busy_ms() for timeline in self.ranks) / (len(self.ranks) * self.total_ms)

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write one file of all ranks for Perfetto; see `Timeline.export_chrome_trace`."""
        Path(path).write_text(chrome_trace.text(self.ranks), encoding="utf-8", newline="\n")

    def export_rank_traces(self, folder: str | Path) -> list[Path]:
        """Write `rank-0.json`, `rank-1.json`, …: a file a rank, as processes do that profile themselves on CUDA.

        HTA (https://github.com/facebookresearch/HolisticTraceAnalysis) opens the folder, Perfetto each file. A message
        is one kernel, from when its rank comes until it ends, as with NCCL. The folder is made; returns the paths.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"rank-{rank}.json" for rank in range(len(self.ranks))]
        for rank, path in enumerate(paths):
            path.write_text(chrome_trace.text_of_rank(self.ranks, rank), encoding="utf-8", newline="\n")
        return paths

    def __str__(self) -> str:
        name, n = self.ranks[0].spec_name, len(self.ranks)
        lines = [f"{n} ranks, each with a simulated {name}: {self.total_ms:.3f} ms in all, GPUs idle {self.idle:.0%}"]
        lines.append(f"  {self.evidence}")
        for rank, timeline in enumerate(self.ranks):
            said, waited = (sum(r.duration_ns for r in timeline.select(kind)) / 1e6 for kind in ("message", "waits"))
            sent = f"{len(timeline.select('message'))} messages {said:.3f} ms"
            lines.append(f"  rank {rank}: busy {timeline.busy_ms():.3f} ms, {sent}, waited for others {waited:.3f} ms")
        return "\n".join(lines)

    __repr__ = __str__


_Range: Any = record_function  # its methods are replaced while a timeline is open
_plain = _Range.__enter__, _Range.__exit__


def _enter(self: Any) -> Any:
    self.begun_ns = state.world.clock.host_ns
    return _plain[0](self)


def _exit(self: Any, *error: Any) -> Any:
    begun = vars(self).pop("begun_ns", None)
    if begun is not None:
        with state.world.lock:
            state.world.journal.host("range", self.name, begun, state.world.clock.host_ns)
    return _plain[1](self, *error)


@contextmanager
def timeline() -> Generator[Timeline]:
    """Record what host and GPUs do inside the `with`; the queues go on as they were.

    Ranges of `torch.profiler.record_function` are recorded too.
    """
    world = enabling.world()
    result = Timeline(world.clock.machine, tuple(f"sim:{gpu.index}" for gpu in world.memory.gpus))
    with world.lock:
        begin, first = world.clock.host_ns, world.journal.launches
        result.begin_ns, raw = begin, world.journal.open()
        _Range.__enter__, _Range.__exit__ = _enter, _exit
    try:
        yield result
    finally:
        communication.finish()
        with world.lock:
            world.journal.close(raw)
            if not world.journal.readers:
                _Range.__enter__, _Range.__exit__ = _plain
            end = max([world.clock.host_ns, *(r.end_ns for r in raw)])
        result.total_ns = end - begin
        result.records += _finished(raw, begin, first)


def _finished(raw: list[Record], begin: int, first: int) -> list[Record]:
    """Return the records with times and numbers from the begin of the timeline, and kernels with what launched them."""
    steps = [(r.start_ns, r.end_ns) for r in raw if r.kind == "range" and r.name.startswith(_STEP)]
    launches, finished = {}, []
    for r in raw:
        phase, line, number = r.phase, r.line, r.number and r.number - first
        if r.kind == "launch":
            if not r.name.startswith("copy ") and any(start < r.end_ns <= end for start, end in steps):
                phase = "optimizer step"
            launches[number] = phase, line
        elif number:
            phase, line = launches[number]
        times = max(r.start_ns - begin, 0), r.end_ns - begin
        sizes = r.flops, r.nbytes, r.bound, r.direction
        finished.append(Record(r.kind, r.name, r.row, *times, *sizes, number, r.stream, phase, line))
    return finished
