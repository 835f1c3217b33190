"""The exercise “Gaps, and whose they are”."""

from collections import Counter

from gpu_course.checks import Case, edges, exercise
from gpu_course.lesson06.timelines import HALVES, LOADING, MEETING, PIECES, RANK, STEP, STREAMS, events_of

_WHOLE = events_of(  # nothing runs on the GPU
    ("host", "read a file", 0.0, 30.0, 0, "start.py:1: table = load()"),
    ("host", "cudaMemcpyAsync", 30.0, 5.0, 0, "start.py:2: table.to(device)"),
    ("copy", "Memcpy HtoD", 35.0, 10.0, 0, ""),
)

_LONG = events_of(  # a short gap; then a call that is mostly before a gap, one mostly behind it, and one inside
    ("kernel", "a", 0.0, 10.0, 0, ""),
    ("kernel", "b", 10.5, 29.5, 0, ""),
    ("kernel", "c", 50.0, 30.0, 0, ""),
    ("host", "cudaLaunchKernel", 0.0, 10.5, 0, "long.py:1: x = f(x)"),
    ("host", "cudaStreamSynchronize", 10.5, 32.5, 0, "long.py:2: x.item()"),
    ("host", "write a file", 43.0, 4.0, 0, "long.py:3: save(x)"),
    ("host", "read a file", 47.0, 40.0, 0, "long.py:4: y = load()"),
)


_BEHIND = events_of(  # the only work of the host begins when the gap ends
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


idle_gaps.exempt("a time counts from 0 on, in µs of a short trace", "number_negative number_large")


@idle_gaps.checks
def _(case: Case) -> None:
    edges.note("limit")  # kernels that meet, at 0 and at the end
    first = [STEP[0], STEP[2]]
    for events, end in (
        (first, 25.0),
        (STEP, 68.0),
        (_WHOLE, 45.0),
        (_LONG, 80.0),
        (PIECES, 40.0),
        (STREAMS, 70.0),
        (STREAMS[::-1], 70.0),
        (HALVES, 12.0),
        (RANK, 90.0),
        (LOADING, 64.0),
        (STEP[::-1], 68.0),
        (STEP[:1], 40.0),
        ([], 10.0),
        (MEETING, 20.0),
        (MEETING, 21.5),
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
