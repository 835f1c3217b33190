"""Exercises of lesson 06: what a profile says, and programs whose GPU waits."""

import inspect
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path

from torch.profiler import ProfilerAction, schedule

import simgpu
from gpu_course.checks import Case, edges, edit, lesson
from gpu_course.lesson06.cases import CASES, CAUSES, evidence, lost_ms, original, program, table, with_numpy
from gpu_course.lesson06.quiet import hide_profiler_messages
from gpu_course.lesson06.ranks import late_rank, read_trace
from gpu_course.lesson06.repairs import repair_both, repair_reads, repaired

__all__ = [
    "CAUSES", "at_most", "diagnose", "hide_profiler_messages", "idle_gaps", "late_rank", "lost_ms", "read_trace",
    "record_steps", "repair_both", "repair_reads", "repaired", "share_of_time", "source", "table", "timelines",
    "with_numpy",
]  # fmt: skip

exercise = lesson("06")


def timelines() -> dict[int, simgpu.Timeline]:
    """Return what host and GPU did in each case, by number. Call it through `devices.on_simulated`."""
    return {number: original(number).timeline for number in CASES}


def source(number: int) -> None:
    """Print the program of a case."""
    print(inspect.getsource(program(number)))


@exercise(
    title="Profile some steps alone",
    minutes=7,
    difficulty=1,
    hints=(
        "Steps are counted from 0. The warm-up is the step just before the first one that you want.",
        "wait + warmup is the number of steps before the first recorded one. active is the number of recorded steps.",
        "There are last - first + 1 steps from first to last. One step of warm-up leaves first - 1 steps to wait. "
        "Without repeat=1 it would begin again.",
    ),
)
def record_steps(first: int, last: int) -> Callable[[int], ProfilerAction]:
    """Return a schedule: a step of warm-up, then `first` to `last` recorded, once."""
    return schedule(wait=first - 1, warmup=1, active=last - first + 1, repeat=1)


record_steps.leaves_out("a step is a small number, from 1 on", "number_negative number_large")
record_steps.leaves_out("it returns a function", "second_call")


@record_steps.checks
def _(case: Case) -> None:
    edges.note("limit")  # "`first` is at least 1"
    for first, last in ((5, 7), (1, 1), (3, 10), (2, 3), (1, 4), (40, 40)):
        with warnings.catch_warnings():  # torch warns of a schedule without a warm-up; the check says it better
            warnings.simplefilter("ignore", UserWarning)
            made = case.call(first, last)
        case.instead(not callable(made), "returns no schedule", "torch.profiler.schedule(…) makes one", got=made)
        actions = [case.use(made, step) for step in range(2 * last + 8)]  # a second round would end there
        case.instead(
            not all(isinstance(action, ProfilerAction) for action in actions),
            "the schedule returns no ProfilerAction",
            got=actions[0],
        )
        names = {ProfilerAction.NONE: "-", ProfilerAction.WARMUP: "w"}
        shown = "".join(names.get(action, "R") for action in actions)
        saves = [step for step, action in enumerate(actions) if action == ProfilerAction.RECORD_AND_SAVE]
        expected = ("-" * (first - 1) + "w" + "R" * (last - first + 1)).ljust(len(actions), "-")
        case.instead(
            shown == expected and last not in saves,
            "does not hand the profile over after the last step",
            "ProfilerAction.RECORD_AND_SAVE does that: return it for the step `last`",
        )
        case.instead(
            shown == expected and saves != [last],
            f"hands the profile over after {len(saves)} steps",
            "each RECORD_AND_SAVE ends a recording: return it for the step `last` alone",
            got=saves,
        )
        case.equal(shown, expected, why="one letter a step: - nothing, w warm-up, R recorded")
        again = [case.use(made, step) for step in reversed(range(len(actions)))]
        case.equal(
            "".join(names.get(action, "R") for action in again[::-1]),
            expected,
            why="the same steps, asked for in another order: what is done depends on the step's number alone",
        )


@record_steps.mistake("counts its own calls", "the profiler says which step it is in: look at that number")
def _(first, last):
    ours, calls = schedule(wait=first - 1, warmup=1, active=last - first + 1, repeat=1), iter(range(10**6))
    return lambda step: ours(next(calls))


@record_steps.alternative("any function of a step is a schedule; then you say yourself when the profile is handed over")
def _(first, last):
    def chosen(step):
        if step == last:
            return ProfilerAction.RECORD_AND_SAVE
        if first <= step < last:
            return ProfilerAction.RECORD
        return ProfilerAction.WARMUP if step == first - 1 else ProfilerAction.NONE

    return chosen


def _events(*rows: tuple) -> list[dict]:
    """Return events from (cat, name, ts, dur, stream, line)."""
    keys = ("cat", "name", "ts", "dur", "stream", "line")
    return [dict(zip(keys, row, strict=True)) for row in rows]


_READ = tomllib.loads(Path(__file__).with_name("events.toml").read_text(encoding="utf-8"))
_STEP, _STREAMS, _PIECES = (_events(*_READ[name]) for name in ("step", "streams", "pieces"))
_RANK, _LOADING = (_events(*_READ[name]) for name in ("rank", "loading"))  # as files of real GPUs are


_WHOLE = _events(  # nothing runs on the GPU
    ("host", "read a file", 0.0, 30.0, 0, "start.py:1: table = load()"),
    ("host", "cudaMemcpyAsync", 30.0, 5.0, 0, "start.py:2: table.to(device)"),
    ("copy", "Memcpy HtoD", 35.0, 10.0, 0, ""),
)

_LONG = _events(  # a short gap; then a call that is mostly before a gap, one mostly behind it, and one inside
    ("kernel", "a", 0.0, 10.0, 0, ""),
    ("kernel", "b", 10.5, 29.5, 0, ""),
    ("kernel", "c", 50.0, 30.0, 0, ""),
    ("host", "cudaLaunchKernel", 0.0, 10.5, 0, "long.py:1: x = f(x)"),
    ("host", "cudaStreamSynchronize", 10.5, 32.5, 0, "long.py:2: x.item()"),
    ("host", "write a file", 43.0, 4.0, 0, "long.py:3: save(x)"),
    ("host", "read a file", 47.0, 40.0, 0, "long.py:4: y = load()"),
)

_HALVES = _events(  # half microseconds, two that begin at once, and an end behind all of them
    ("kernel", "a", 1.5, 3.0, 0, ""),
    ("kernel", "b", 1.5, 6.5, 1, ""),
    ("kernel", "c", 1.5, 0.5, 2, ""),
    ("host", "cudaLaunchKernel", 0.0, 1.5, 0, "step.py:1: y = f(x)"),
    ("host", "cudaStreamSynchronize", 1.5, 8.0, 0, "step.py:2: y.item()"),
)


_MEETING = _events(  # the second begins when the first ends; a line has its time in two pieces
    ("kernel", "b", 6.0, 14.0, 0, ""),
    ("kernel", "a", 2.0, 4.0, 0, ""),
    ("host", "aten::add", 0.0, 1.0, 0, "meet.py:1: x = x + 1"),
    ("host", "aten::mul", 1.0, 0.5, 0, "meet.py:2: x = 2 * x"),
    ("host", "aten::mul", 1.5, 4.0, 0, "meet.py:2: x = 2 * x"),
)


_BEHIND = _events(  # the only work of the host begins when the gap ends
    ("kernel", "a", 5.0, 5.0, 0, ""),
    ("host", "aten::add", 5.0, 4.0, 0, "behind.py:1: x = x + 1"),
)


@exercise(
    title="Gaps, and whose they are",
    minutes=25,
    difficulty=3,
    hints=(
        "Sort the kernels by when they begin. Keep in a variable `until` how far the GPU has been busy so far.",
        "There is a gap wherever a kernel begins later than `until`. Treat the end of the trace as one more kernel. As "
        "streams overlap, `until` is the largest end so far, which need not be the end of the kernel before.",
        "An event of the host lies inside a gap from a to b for min(b, end) - max(a, begin) µs, if that is above 0. "
        "Add these times up in a Counter, by line, and take the line with the most. "
        'max(…, default="") accepts an empty one.',
    ),
)
def idle_gaps(events: list[dict], end_us: float) -> list[tuple[float, float, str]]:
    """Return the gaps of the GPU: (begin in µs, length in µs, line of the host)."""
    kernels = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == "kernel")
    host = [e for e in events if e["cat"] == "host"]
    gaps, until = [], 0.0
    for begin, end in [*kernels, (end_us, end_us)]:  # what comes after the last kernel is a gap too
        if begin > until:
            spent = Counter()
            for e in host:
                spent[e["line"]] += max(0.0, min(begin, e["ts"] + e["dur"]) - max(until, e["ts"]))
            gaps.append((until, begin - until, max(+spent, key=spent.get, default="")))  # + drops zeros
        until = max(until, end)  # streams overlap: the kernel before need not be the last to end
    return gaps


idle_gaps.leaves_out("a time counts from 0 on, in µs of a short trace", "number_negative number_large")


@idle_gaps.checks
def _(case: Case) -> None:
    edges.note("limit")  # kernels that meet, at 0 and at the end
    first = [_STEP[0], _STEP[2]]
    for events, end in (
        (first, 25.0),
        (_STEP, 68.0),
        (_WHOLE, 45.0),
        (_LONG, 80.0),
        (_PIECES, 40.0),
        (_STREAMS, 70.0),
        (_STREAMS[::-1], 70.0),
        (_HALVES, 12.0),
        (_RANK, 90.0),
        (_LOADING, 64.0),
        (_STEP[::-1], 68.0),
        (_STEP[:1], 40.0),
        ([], 10.0),
        (_MEETING, 20.0),
        (_MEETING, 21.5),
        (_BEHIND, 10.0),  # "without host events it is `""`"
    ):
        case.equal(_plain(case.call(events, end)), _gaps_by_tick(events, end))


def _plain(got: object) -> object:
    """Return a list of tuples where the answer gives lists, and floats for whole numbers."""
    if not isinstance(got, list | tuple) or not all(isinstance(gap, list | tuple) and len(gap) == 3 for gap in got):
        return got
    return [tuple(float(part) if isinstance(part, int) else part for part in gap) for gap in got]


def _gaps_by_tick(events: list[dict], end: float) -> list[tuple[float, float, str]]:
    """Return the gaps by looking at every half microsecond: slow and obvious."""

    def at(cat: str, tick: float) -> list[str]:
        return [e["line"] for e in events if e["cat"] == cat and e["ts"] <= tick < e["ts"] + e["dur"]]

    gaps, tick = [], 0.0
    while tick < end:
        begin, lines = tick, Counter()
        while tick < end and not at("kernel", tick):
            lines.update(at("host", tick))
            tick += 0.5
        if tick > begin:
            gaps.append((begin, tick - begin, max(lines, key=lines.get, default="")))
        tick += 0.5
    return gaps


@idle_gaps.alternative("one line a question, and each looks at all events again: fine for thousands, slow for millions")
def _(events, end_us):
    kernels = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == "kernel"]
    begins = [0.0] + [end for _, end in kernels if not any(a <= end < b for a, b in kernels)]
    gaps = []
    for begin in sorted({begin for begin in begins if not any(a <= begin < b for a, b in kernels)}):
        end = min([a for a, _ in kernels if a >= begin] + [end_us])
        spent = Counter()
        for e in (e for e in events if e["cat"] == "host" and e["ts"] < end and e["ts"] + e["dur"] > begin):
            spent[e["line"]] += min(end, e["ts"] + e["dur"]) - max(begin, e["ts"])
        gaps += [(begin, end - begin, max(spent, key=spent.get, default=""))] if end > begin else []
    return gaps


@exercise(
    title="Shares of the time",
    minutes=10,
    difficulty=2,
    hints=(
        "Collect begin and end of all events of one kind, and sort them by begin.",
        "A moment that two events share counts once. Of each event, only what lies behind the largest end so far is "
        "new.",
        "What is new is end - max(begin, until), if that is above 0. Then until = max(until, end). At the end, divide "
        "by end_us.",
    ),
)
def share_of_time(events: list[dict], end_us: float) -> dict[str, float]:
    """Return for each `cat` the share of the time in which its events were going on."""
    shares = {}
    for cat in {e["cat"] for e in events}:
        busy = until = 0.0
        for begin, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == cat):
            busy += max(0.0, end - max(begin, until))  # what no earlier event has covered
            until = max(until, end)
        shares[cat] = busy / end_us
    return shares


share_of_time.leaves_out("a time counts from 0 on, in µs of a short trace", "number_negative number_large limit")


@share_of_time.checks
def _(case: Case) -> None:
    nested = _events(
        ("host", "aten::linear", 2.0, 20.0, 0, ""),
        ("host", "aten::addmm", 5.0, 10.0, 0, ""),
        ("host", "cudaLaunchKernel", 8.0, 4.0, 0, ""),
        ("host", "aten::relu", 25.0, 5.0, 0, ""),
    )
    both = nested + _STREAMS
    for events, end in (
        (nested[3:], 40.0),
        (nested, 40.0),
        (_STREAMS, 100.0),
        (both, 80.0),
        (_STEP, 70.0),
        (_HALVES, 12.0),
        (_STREAMS[::-1], 100.0),
        (_MEETING, 20.0),
        ([], 10.0),
        (_events(("mark", "epoch", 3.0, 0.0, 0, ""), *[("kernel", "a", 1.0, 2.0, 0, "")] * 2), 8.0),  # "for each kind"
    ):
        expected = {}
        for cat in sorted({e["cat"] for e in events}):  # by half microseconds
            spans = [(int(2 * e["ts"]), int(2 * (e["ts"] + e["dur"]))) for e in events if e["cat"] == cat]
            expected[cat] = len({tick for span in spans for tick in range(*span)}) / 2 / end
        got = case.call(events, end)
        case.equal(dict(sorted(got.items(), key=str)) if isinstance(got, dict) else got, expected)


@share_of_time.alternative("begins and ends in one list, and a count of how many are open: one idea for any overlap")
def _(events, end_us):
    shares = {}
    for cat in {e["cat"] for e in events}:
        edges = [(e["ts"], 1) for e in events if e["cat"] == cat]
        edges += [(e["ts"] + e["dur"], -1) for e in events if e["cat"] == cat]
        busy, opened, before = 0.0, 0, 0.0
        for moment, change in sorted(edges):
            busy += (moment - before) * (opened > 0)
            opened, before = opened + change, moment
        shares[cat] = busy / end_us
    return shares


@exercise(
    title="What it brings at most",
    minutes=6,
    difficulty=1,
    hints=(
        "How much time is left when everything that these causes take is gone?",
        "Divide the time before by the time after.",
        "The time after is total_ms minus the sum of idle_ms[cause] over the causes that are removed.",
    ),
)
def at_most(total_ms: float, idle_ms: dict[str, float], removed: list[str]) -> float:
    """Return how many times as fast it gets at most without the causes in `removed`."""
    return total_ms / (total_ms - sum(idle_ms[cause] for cause in removed))


at_most.leaves_out("a time is not below 0, and what the kernels take remains", "number_negative number_large limit")


@at_most.checks
def _(case: Case) -> None:
    for total, idle, removed in (
        (10.0, {"loader": 5.0}, ["loader"]),
        (20.0, {"loader": 8.0, "copies": 4.0}, ["copies"]),
        (12.0, {"reads": 3.0}, []),
        (50.0, {"loader": 20.0, "reads": 10.0, "copies": 5.0}, ["loader", "reads"]),
        (30.0, {"a": 3.0, "b": 6.0, "c": 9.0}, ["a", "b", "c"]),
        (30.0, {"c": 9.0, "a": 3.0, "b": 6.0}, ["c", "a"]),
        (30.0, {"a": 3.0, "b": 0.0, "c": 9.0}, ["b"]),
        (30.0, {}, []),
        (1000.0, {"a": 999.0}, ["a"]),
        (2.0, {"a": 1.75}, ["a"]),  # less than a millisecond is left
    ):
        left = total
        for cause in removed:
            left -= idle[cause]
        case.equal(case.call(total, idle, removed), total / left, rtol=1e-9)


at_most.alternative(
    "the form in which Amdahl's law is quoted: shares of the time",
    edit("""
        -    return total_ms / (total_ms - sum(idle_ms[cause] for cause in removed))
        +    return 1 / (1 - sum(idle_ms[cause] / total_ms for cause in removed))
    """),
)


@exercise(
    title="Seven diagnoses",
    minutes=12,
    difficulty=2,
    simulated=True,
    limit_s=20,
    hints=(
        "Ask three questions. Does the GPU compute nearly all the time? If not, what does the host do in the gaps: "
        "does it wait, work or launch? If it waits, does it wait for a small value or for a large copy?",
        "Look at the number of calls. Some causes are a few long calls, others are thousands of short ones. If the "
        "data goes back to the host before the host works on it, that work is not loading.",
        "One case has two kinds of bars in its gaps. In another the host waits for a long time, but for a GPU that is "
        "never idle.",
    ),
)
def diagnose() -> dict[int, set[str]]:
    """Return for each case, 1 to 7, the set of its causes, or {"none"}."""
    return {
        1: {"tiny operators"},
        2: {"synchronisation"},
        3: {"copies"},
        4: {"loader"},
        5: {"host work"},
        6: {"loader", "synchronisation"},
        7: {"none"},
    }


diagnose.leaves_out("it takes no argument", "other_input")
diagnose.leaves_out("an answer in words stays what it is", "second_call")


@diagnose.checks
def _(case: Case) -> None:
    got = case.call()
    case.instead(not isinstance(got, dict), "returns no dict", "a set of causes for each number is asked for", got=got)
    strange = [number for number in got if number not in CASES or isinstance(number, float)]
    case.instead(strange, f"has the key {strange[:1]}", "the cases have the numbers 1 to 7", got=got)
    other = next((number for number in got if not isinstance(got[number], Set)), 0)
    kind = type(got.get(other)).__name__
    case.instead(other, f"gives case {other} a {kind}, not a set", "a set of causes is asked for: {…}", got=got)
    given = {number: _causes(got.get(number)) for number in CASES}
    for number, causes in given.items():
        case.instead(not causes, f"case {number}: no cause is named", f"choose from {', '.join(CAUSES)}")
        unknown = sorted(causes - set(CAUSES))
        case.instead(
            unknown, f"case {number}: {', '.join(unknown)} is none of the causes", f"choose from {', '.join(CAUSES)}"
        )
    for number, causes in given.items():
        right = CASES[number][0]
        for cause in sorted((causes & set(CAUSES)) - right):
            case.instead(True, f"case {number}: {cause} is not what keeps it back", evidence(number, cause))
        case.instead(
            not right <= causes,
            f"case {number}: that is not all",
            "more than one cause keeps its GPU idle: "
            f"with this one repaired it would still be idle for {_left(number, causes & right)} of the time",
        )


def _causes(given: object) -> set[str]:
    return {str(cause) for cause in given} if isinstance(given, Set) else set()


def _left(number: int, causes: set[str]) -> str:
    lost, total = lost_ms(original(number).timeline), original(number).timeline.total_ms
    saved = sum(lost[cause] for cause in causes)
    return f"{(sum(lost.values()) - saved) / (total - saved):.0%}"


diagnose.alternative(
    "sets that nobody can change later: they may be keys of a dict, and members of other sets",
    edit("""
        -        6: {"loader", "synchronisation"},
        +        6: frozenset({"loader", "synchronisation"}),
    """),
)
