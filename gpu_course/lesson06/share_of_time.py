"""The exercise “Shares of the time”."""

from gpu_course.checks import Case, exercise
from gpu_course.lesson06.timelines import HALVES, MEETING, STEP, STREAMS, events_of


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


share_of_time.exempt("a time counts from 0 on, in µs of a short trace", "number_negative number_large limit")


@share_of_time.checks
def _(case: Case) -> None:
    nested = events_of(
        ("host", "aten::linear", 2.0, 20.0, 0, ""),
        ("host", "aten::addmm", 5.0, 10.0, 0, ""),
        ("host", "cudaLaunchKernel", 8.0, 4.0, 0, ""),
        ("host", "aten::relu", 25.0, 5.0, 0, ""),
    )
    both = nested + STREAMS
    for events, end in (
        (nested[3:], 40.0),
        (nested, 40.0),
        (STREAMS, 100.0),
        (both, 80.0),
        (STEP, 70.0),
        (HALVES, 12.0),
        (STREAMS[::-1], 100.0),
        (MEETING, 20.0),
        ([], 10.0),
        (
            events_of(("mark", "epoch", 3.0, 0.0, 0, ""), *[("kernel", "a", 1.0, 2.0, 0, "")] * 2),
            8.0,
        ),  # "for each kind"
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
