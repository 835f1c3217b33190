"""Construction of a report: a session's log is replayed on the GPU of the run, and read."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TypeGuard

from simgpu.clock import host_time
from simgpu.clock.events import FIRST_BATCH, LOADING, OPTIMIZER, Copy, Event, Message, Step, Work
from simgpu.clock.events import Kernel as Queued
from simgpu.clock.evidence import Evidence
from simgpu.clock.journal import Record
from simgpu.clock.lines import UNLIKE, Error, Line, Part, Row, rows
from simgpu.clock.player import play
from simgpu.device.timelines import Gap, Timeline
from simgpu.forecasts.parts import seconds_by_part
from simgpu.forecasts.whatif import Basis
from simgpu.ground.device_kind import KINDS
from simgpu.machine.hosts import Host
from simgpu.machine.machines import Machine
from simgpu.reports.forms import Report
from simgpu.reports.holdings import OWNERS
from simgpu.reports.report import Kernel
from simgpu.reports.rule import Outcome
from simgpu.reports.session import EVENTS, TELLING, Recording

_MOST_KERNELS = 12
_WORTH = 0.1  # the share of a step from which on a line that computes with float64, or odd rows, is worth a look
_ODD = 10  # a step of so many times the usual events is odd
_TRAINING = ("backward", "recomputation", "optimizer step")  # phases
_ALONE = 0.1  # or one of whose events so many have a line that no other step has
_DIRECTIONS = {"H2D": "to the GPU", "D2H": "to the host", "D2D": "to another GPU"}


class Session(Recording):
    """Recording that gives the report of what it has recorded until now."""

    def report(self, price: float | None = None, steps: int | None = None) -> Report:
        """Return what the program did until now; `price` an hour and GPU and `steps` give options hours and cost."""
        return replace(gather(self), price=price, run_steps=steps)


def gather(session: Recording) -> Report:
    """Return the report of what a session has recorded until now."""
    world, run, held, log = session.world, session.run, session.holdings, session.trainings.first.log
    gpu = max(range(len(world.memory.gpus)), key=lambda index: held.peaks[index])
    at_peak = held.at_peak(gpu)
    owners: dict[str, int] = dict.fromkeys(OWNERS, 0)
    for one in at_peak:
        owners["others" if one.is_data else one.owner] += one.nbytes
    recorded = [event for event in log.events if not (run.steps > 1 and _begins_a_loader(event))]
    usual, odd, once_at, turns = _usual(recorded, session.program.step_lines.values())
    events, first, last = _window(usual, turns or 1 + session.program.several)
    gpus, machine = len(world.memory.gpus), replace(session.machine, link=world.clock.machine.link)
    timeline = Timeline.of(play(events, machine, gpus), first, last)
    row = max(timeline.rows, key=lambda name: (timeline.busy_ms(name), name == timeline.rows[0]))
    steps, capacity = last - first, session.capacities[gpu]
    gaps = _split(timeline.gaps(row), timeline)
    charged = _charged(gaps, timeline)
    waits = _waits(charged, timeline, steps)
    used = _gpus(timeline, events)
    basis = Basis(
        machine=machine, gpus=gpus, used=used, events=tuple(events), first=first, last=last,
        capacity=capacity, owners=owners,
        scaling=sum(one.nbytes for one in at_peak if one.grows_with_batch),
        optimizer=run.optimizer,
    )  # fmt: skip
    step_s = timeline.total_ns / steps / 1e9
    own = session.own_work.rows()
    return Report(
        gpu=machine.gpu, gpus=used, capacity=capacity, peak=sum(owners.values()), owners=owners,
        memory_lines=rows(Part(one.line, 0.0, one.nbytes, one.owner) for one in at_peak), steps=run.steps,
        trainings=_trainings(session, machine, step_s),
        growth=list(session.growth.found), growth_turns=session.growth.turns,
        step_kind=_step_kind(session), recorded=steps, odd=odd, step_time=step_s,
        once=_once(session, recorded, once_at, odd, step_s, machine), own=own,
        busy=timeline.utilisation(row), launching=_launching(charged, timeline),
        phases=seconds_by_part(timeline, row, gaps, steps),
        data_ms=session.data_ms, shapes=session.shapes,
        waits=waits, wait_count=_wait_count(waits + _waits(gaps, timeline, steps)),
        copies=_copies(timeline, steps), launches=_launches(timeline, steps), kernels=_kernels(timeline, steps),
        host=_host(events, machine.host, first, last),
        habits=session.found(Outcome(
            launching=_launching(charged, timeline),
            room=4 * sum(owners.values()) < capacity,
            doubles=_long(session, events, step_s, lambda one, _: one.cost.rate == "fp64" and one.phase == "forward"),
            odd_rows=_long(session, events, step_s, lambda _, bound: bound == "odd rows"),
            step_s=step_s, own={str(Line(*row.parts)): row.seconds for row in own},
        )),
        errors=_errors(session), failure=session.failure,
        compiled=None if session.model_calls is None else session.model_calls.step(basis, step_s),
        evidence=_evidence(session, timeline), kind=session.kind, has_compiled=session.has_compiled,
        simulated=session.simulated_s, real=session.real_s,
        basis=basis, must_read=_must_read(session),
        asking={Line.of(line).parts: "pinned" for line, pinned in _pinned(events).items() if pinned}
        | {Line.of(line).parts: "unpinned" for line in log.unpinned if KINDS[session.kind].has_pinned_memory}
        | {Line.of(line).parts: why for line, why in session.reads.asking.items()},
        epochs={Line.of(line).parts: batches for line, batches in session.epochs.items()},
    )  # fmt: skip


def _pinned(events: list[Event]) -> dict[str, bool]:
    """Return of each line that copies to a GPU whether all that it copies is pinned."""
    copies = [event for event in events if isinstance(event, Copy) and event.direction == "H2D"]
    return {one.line: one.pinned for one in sorted(copies, key=lambda one: not one.pinned)}


def _trainings(session: Recording, machine: Machine, step_s: float) -> list[Row]:
    """Return the line of the steps of each training, how long one takes, and how many there were; of one nothing."""
    first, *others = session.trainings.all
    times = {first: step_s}
    for training in others:
        if len(training.log):
            events, begin, end = _window(_usual(training.log.events)[0])
            whole = Timeline.of(play(events, machine, len(session.world.memory.gpus)), begin, end)
            times[training] = whole.total_ns / (end - begin) / 1e9
    found = [
        Row(*Line.of(one.line).parts, times.get(one, 0.0), one.steps, 0, f"{one.name}.step()")
        for one in (first, *others)
    ]  # fmt: skip
    return found if others else []


def _evidence(session: Recording, timeline: Timeline) -> Evidence:
    """Return how far such times were off: the published runs are of CUDA."""
    known = timeline.evidence
    return known if session.kind == "cuda" else Evidence(known.regime, known.gpu)


def _host(events: list[Event], host: Host, first: int, last: int) -> dict[str, float]:
    """Return what the host takes for a step by part; nothing where it takes the same for each launch."""
    if host.only_launches:
        return {}
    ends = [-1, *(index for index, event in enumerate(events) if isinstance(event, Step))]
    parts = host_time.seconds_by_part(events[ends[first] + 1 : ends[last] + 1], host)
    return {part: seconds / (last - first) for part, seconds in parts.items()}


def _begins_a_loader(event: Event) -> TypeGuard[Work]:
    """Return whether a loader begins, which takes what is done once."""
    return isinstance(event, Work) and event.name == FIRST_BATCH


def _usual(events: list[Event], updates: Collection[int] = ()) -> tuple[list[Event], int, str, int]:
    """Return the events without those of odd steps, how many these were, and the line with most of what is odd.

    Such a step has many more events, as one that also makes a sample of a language model, letter by letter; or it is
    the only one with some lines, which train nothing, as with a validation after the first step; or at most half of
    the steps have what another optimizer does, in no turns that `updates`, how many steps each line makes, bear out.
    The first stays. Of such turns, as of a generator after three steps of its critic, whole ones stay at the end; the
    last value is the number of the step with which they begin, 0 where there are none.
    """
    ends = [index + 1 for index, event in enumerate(events) if isinstance(event, Step)]
    steps = [events[begin:end] for begin, end in pairwise([0, *ends])]
    if len(steps) < TELLING:
        return events, 0, "", 0
    usual = median(len(step) for step in steps)
    lines = [Counter(getattr(event, "line", "") for event in step) for step in steps]
    training = {event.line for event in events if isinstance(event, Queued) and event.phase in _TRAINING}
    times = Counter(line for found in lines for line in found)
    alone = [Counter({line: n for line, n in found.items() if times[line] == 1}) for found in lines]
    seldom = [found.total() > _ALONE * usual and training.isdisjoint(found) for found in alone]
    turns = [{one.line for one in step if isinstance(one, Queued) and one.phase == OPTIMIZER} for step in steps]
    times = Counter(line for found in turns[1:] for line in found)  # of lines that change weights
    others = {line for line, n in times.items() if 2 * n < len(steps) <= max(times.values()) + 1}
    having = [number for number, found in enumerate(turns) if found & others]
    more = [seldom[number] or len(step) > _ODD * usual for number, step in enumerate(steps)]
    whole = _turns(having, len(steps), updates)
    if whole and not any(more[-whole:]):
        first = min(2, len(steps) - whole)
        return [event for step in (*steps[:first], *steps[-whole:]) for event in step], 0, "", first
    for number in having:
        seldom[number], alone[number] = True, Counter(dict.fromkeys(turns[number] & others, len(steps[number])))
    odd = [number for number in range(1, len(steps)) if more[number] or seldom[number]]
    most = sum((alone[number] if seldom[number] else lines[number] for number in odd), Counter()).most_common(1)
    kept = [step for number, step in enumerate(steps) if number not in odd]
    while len(kept) > 2 and sum(map(len, kept[1:])) > EVENTS:
        kept.pop()
    return [event for step in kept for event in step], len(odd), most[0][0] if most else "", 0


def _turns(having: list[int], steps: int, updates: Collection[int]) -> int:
    """Return how many steps at the end are whole turns, if those `having` what another optimizer does come in turns.

    The turns without its first step, in which it makes its state, are enough where there are any.
    """
    lengths = {later - former for former, later in pairwise(having)} or {having[0]} if having else set()
    length = lengths.pop() if len(lengths) == 1 else 0
    if length < 2 or length >= steps or not any(abs(n * length - max(updates)) <= length for n in updates):
        return 0
    return max((steps - 1 - having[0]) // length, 1) * length


def _once(session: Recording, recorded: list[Event], line: str, odd: int, step_s: float, machine: Machine) -> list[Row]:
    """Return what is left out of a step, and how long it takes each time: beginnings of loaders, and odd steps."""
    if session.run.steps < 2:
        return []
    began = filter(_begins_a_loader, session.trainings.first.log.events)
    parts = rows(Part(event.line, event.length_ns / 1e9, 0, FIRST_BATCH) for event in began)
    once = [replace(row, seconds=row.seconds / row.count) for row in parts]
    if odd:
        events, first, last = _window(recorded)
        whole_s = Timeline.of(play(events, machine, len(session.world.memory.gpus)), first, last).total_ns / 1e9
        extra_s = (whole_s - (last - first) * step_s) / odd
        once.append(Row(*Line.of(line).parts, max(extra_s, 0.0), odd, 0, UNLIKE))
    return once


def _window(events: list[Event], first: int = 1) -> tuple[list[Event], int, int]:
    """Return the events and which steps to look at, from number `first` (from 0) to before `last`.

    The first one is left out where there are others: it makes the optimizer's state, and the second one that of
    another optimizer. What comes after the last end of a step is left out too. Without steps all is one.
    """
    ends = [index for index, event in enumerate(events) if isinstance(event, Step)]
    if not ends:
        return [*events, Step()], 0, 1
    return events[: ends[-1] + 1], min(first, len(ends) - 1), len(ends)


def _gpus(timeline: Timeline, events: list[Event]) -> int:
    """Return how many GPUs compute: those of this process, or the ranks that its messages go to."""
    ranks = max((len(event.ranks) for event in events if isinstance(event, Message)), default=1)
    return max(ranks, len({record.row for record in timeline.select("kernel")}))


def _step_kind(session: Recording) -> str:
    if session.run.marked:
        return "simgpu.step()"
    if session.program.hand_steps:
        return "a change of the weights by the program itself"
    if not session.run.steps:
        return "the whole run is one step"
    where = f" at {Line.of(session.trainings.first.line).where}" if session.program.several else ""
    return f"{session.run.optimizer.name}.step(){where}"


def _long(
    session: Recording, events: list[Event], step_s: float, chosen: Callable[[Queued, str], bool]
) -> tuple[str, ...]:
    """Return the lines whose kernels that are `chosen`, by what bounds them, take more than a tenth of a step."""
    lines: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Queued) and event.line and (event.cost.odd_bytes or event.cost.rate == "fp64"):
            length_ns, bound = session.machine.rates.kernel(event.cost, event.bare)
            lines[event.line] += length_ns * chosen(event, bound)
    run_ns = step_s * 1e9 * sum(isinstance(event, Step) for event in events)
    return tuple(line for line, line_ns in lines.items() if line_ns > _WORTH * run_ns)


def _must_read(session: Recording) -> frozenset[tuple[str, int, str]]:
    """Return the lines that have to wait: for values that are needed, or once for a model, if the run is one step.

    Ranks that get the same model wait once, too.
    """
    program = session.program
    moved = {line for line, times in program.moves.items() if times < 3 and session.run.steps <= 1}  # `.cuda().to(…)`
    return frozenset(Line.of(line).parts for line in session.reads.must | moved | program.preparing)


# ---- time -------------------------------------------------------------------------------------------------------
def _split(gaps: list[Gap], timeline: Timeline) -> list[Gap]:
    """Return gaps in which the host was late as several, one for each thing that it did meanwhile.

    Launches that follow a wait in the same gap count as the wait: before it, they would not have made a gap.
    """
    host = [record for record in timeline.records if record.row == "host"]
    ends = [record.end_ns for record in host]
    parted: list[Gap] = []
    for gap in gaps:
        late = not gap.cause.startswith(("needs ", "held back"))
        parts = _parts_of(gap, host, bisect_right(ends, gap.start_ns)) if late else []
        parted += parts or [gap]
    return parted


def _parts_of(gap: Gap, host: list[Record], first: int) -> list[Gap]:
    """Return what the host did in a gap, in order; what number `first` of `host` was ended after the gap's begin."""
    parts: list[Gap] = []
    last, end = None, gap.start_ns + gap.duration_ns
    for index in range(first, len(host)):
        record = host[index]
        if record.start_ns >= end:
            break
        last = last if record.kind == "launch" else record
        blamed = last or record
        start = parts[-1].start_ns + parts[-1].duration_ns if parts else gap.start_ns
        cause = "launches" if blamed.kind == "launch" and not blamed.name.startswith("copy ") else blamed.name
        parts.append(Gap(start, min(record.end_ns, end) - start, blamed.line, cause))
    if parts:
        start = parts[-1].start_ns
        parts[-1] = parts[-1]._replace(duration_ns=end - start)
    return parts


@dataclass
class _Lead:
    """What a wait cost the host: how long the GPU computed meanwhile, less what the wait has been charged with."""

    line: str
    cause: str
    left_ns: int


def _charged(gaps: list[Gap], timeline: Timeline) -> list[Gap]:
    """Return gaps in which the host loaded data, did other work or launched, as gaps of earlier waits that made them.

    While the GPU computed and the host waited, the host could have done that: without the wait there would be no gap.
    Each wait is charged with at most that time, the last wait first; for work those count since the work before it, for
    launches those since the last work.
    """
    host = [record for record in timeline.records if record.kind in ("wait", "work")]
    works = {record.name for record in host if record.kind == "work"}
    ends = [gap.start_ns + gap.duration_ns for gap in gaps]
    charged: list[Gap] = []
    before: list[_Lead] = []  # of waits before the work
    since: list[_Lead] = []  # of waits after it
    index = 0
    for gap, end in zip(gaps, ends, strict=True):
        while index < len(host) and host[index].start_ns < end:
            record, index = host[index], index + 1
            if record.kind == "work":
                before, since = since, []
            elif record.line:
                left_ns = record.duration_ns - _overlap_ns(record, gaps, ends)
                if left_ns > 0:
                    since.append(_Lead(record.line, record.name, left_ns))
        waits = before if gap.cause in works else since if gap.cause == "launches" else []
        charged += _shared(gap, waits)
    return charged


def _overlap_ns(record: Record, gaps: list[Gap], ends: list[int]) -> int:
    """Return how much of a record is in gaps, which are in order and end at `ends`."""
    overlap_ns = 0
    for index in range(bisect_right(ends, record.start_ns), len(gaps)):
        start = gaps[index].start_ns
        if start >= record.end_ns:
            break
        overlap_ns += min(ends[index], record.end_ns) - max(start, record.start_ns)
    return overlap_ns


def _shared(gap: Gap, waits: list[_Lead]) -> list[Gap]:
    """Return a gap in parts, one for each wait that can be charged with some of it, and what is left.

    The last of the `waits` comes first; those that have nothing left are taken out.
    """
    parts: list[Gap] = []
    while waits and gap.duration_ns:
        wait = waits[-1]
        part_ns = min(wait.left_ns, gap.duration_ns)
        wait.left_ns -= part_ns
        parts.append(Gap(gap.start_ns, part_ns, wait.line, wait.cause))
        gap = gap._replace(start_ns=gap.start_ns + part_ns, duration_ns=gap.duration_ns - part_ns)
        if not wait.left_ns:
            waits.pop()
    return [*parts, gap] if gap.duration_ns else parts


def _is_launching(gap: Gap) -> bool:
    return gap.cause in ("launches", "nothing to do", "held back")


def _launching(gaps: list[Gap], timeline: Timeline) -> float:
    """Return the share of the time, 0 to 1, in which a GPU waits since the host launches one operation at a time."""
    return sum(gap.duration_ns for gap in gaps if _is_launching(gap)) / timeline.total_ns if timeline.total_ns else 0.0


def _waits(gaps: list[Gap], timeline: Timeline, steps: int) -> list[Row]:
    """Return the lines that keep the GPU waiting, but for launches; the count is that of the host's waits there.

    Loading has a row of its own, and so have the first batch of a loader, and copies to the host.
    """
    late = [gap for gap in gaps if not _is_launching(gap)]
    busy = [record for record in timeline.records if record.kind in ("wait", "work")]
    lines: list[Row] = []
    for kind in ("", "D2H", LOADING, FIRST_BATCH):
        times = Counter(str(Line.of(record.line)) for record in busy if _kind(record.name) == kind)
        parts = (Part(gap.line, gap.duration_ns / 1e9, 0, _cause(gap)) for gap in late if _kind(gap.cause) == kind)
        for row in rows(parts, steps):
            lines.append(replace(row, count=times.get(str(Line(*row.parts)), row.count * steps) / steps))
    return sorted(lines, key=lambda row: (-row.seconds, -row.bytes, -row.count))


def _kind(cause: str) -> str:
    return cause if cause in (LOADING, FIRST_BATCH) else "D2H" * ("D2H" in cause)


def _wait_count(waits: list[Row]) -> float:
    """Return how often in a step the lines of these rows wait; of two rows of a line and kind one counts."""
    kinds = {(row.parts, row.cause in (LOADING, FIRST_BATCH), "to the host" in row.cause): row.count for row in waits}
    return sum(kinds.values())


def _cause(gap: Gap) -> str:
    """Return what a gap is about, in the words of a report: "the host waits for a copy to the GPU"."""
    cause = gap.cause.replace("wait for ", "the host waits for ").replace("needs ", "the GPU waits for ")
    for direction, words in _DIRECTIONS.items():
        cause = cause.replace(f"copy {direction}", f"a copy {words}")
    return cause.partition(" on sim:")[0]


def _copies(timeline: Timeline, steps: int) -> list[Row]:
    copies = timeline.select("copy")
    return rows((Part(r.line, r.duration_ns / 1e9, r.nbytes, _DIRECTIONS[r.direction]) for r in copies), steps, True)


def _launches(timeline: Timeline, steps: int) -> list[Row]:
    launches = [r for r in timeline.select("launch") if not r.name.startswith("copy ")]
    return rows((Part(r.line, r.duration_ns / 1e9, 0, r.phase) for r in launches), steps)


def _kernels(timeline: Timeline, steps: int) -> list[Kernel]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in timeline.select("kernel"):
        groups[record.name].append(record)
    kernels = [_kernel(name, group, timeline, steps) for name, group in groups.items()]
    return sorted(kernels, key=lambda kernel: -kernel.seconds)[:_MOST_KERNELS]


def _kernel(name: str, group: list[Record], timeline: Timeline, steps: int) -> Kernel:
    bounds: Counter[str] = Counter()
    for record in group:
        bounds[record.bound] += record.duration_ns
    length_ns = bounds.total()
    flops, nbytes = sum(r.flops for r in group) / steps, sum(r.nbytes for r in group) / steps
    share = length_ns / timeline.total_ns if timeline.total_ns else 0.0
    name = name.replace("_for_cpu", "")  # the CPU's kernel that computes the values
    return Kernel(name, len(group) / steps, length_ns / steps / 1e9, share, bounds.most_common(1)[0][0], flops, nbytes)


# ---- errors -----------------------------------------------------------------------------------------------------
def _errors(session: Recording) -> list[Error]:
    """Return what failed."""
    errors = list(session.errors)
    known = {(error.file, error.line) for error in errors if error.kind == "out of memory"}
    for place, nbytes in session.holdings.refusals:
        line = Line.of(place)
        if (line.file, line.line) not in known:
            known.add((line.file, line.line))
            text = f"{nbytes:,} bytes were asked for and not there; the program went on"
            errors.append(Error(*line.parts, "out of memory", text))
    return errors
