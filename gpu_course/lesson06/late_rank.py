"""The exercise “Which rank do all wait for”."""

from gpu_course.checks import Case, exercise

_MESSAGES = "AllReduce_Sum_f32_RING_LL", "ReduceScatter_Sum_bf16_RING"  # what names of NCCL's kernels end with


def _files(
    slower_us: dict[int, float], *, loading: bool, ranks: int, once: int, at: int = 0, other: int = 0
) -> list[list[dict]]:
    """Return each rank's events: those in `slower_us` load, or compute, longer by so much; `once` in step `at` alone.

    A kernel of NCCL begins when its rank comes and ends, on all ranks at once, 20 µs after the last one has come. Each
    file has a clock of its own. The host of rank 1 also writes a log while its GPU computes: nobody waits for that.
    Events that are no kernels of NCCL, and have "nccl" in their names, take `other` µs times what a rank is slower by.
    """
    files: list[list[dict]] = [[] for _ in range(ranks)]
    now = 100.0
    for step in range(4):
        late = [slower_us.get(rank, 0.0) + (400.0 if step == at and rank == once else 0.0) for rank in range(ranks)]
        for rank, more in enumerate(late):
            wait = more if loading or (step == at and rank == once) else 0.0
            work = 200.0 + more - wait
            files[rank] += [
                {"cat": "host", "name": "load", "ts": now, "dur": 10.0 + wait, "stream": 0, "line": "a.py:3: load()"},
                {"cat": "copy", "name": "Memcpy HtoD", "ts": now + wait + 10.0, "dur": 10.0, "stream": 7, "line": ""},
                {"cat": "kernel", "name": "sgemm", "ts": now + wait + 20.0, "dur": work, "stream": 7, "line": ""},
                _own(now + wait + 20.0, "kernel", "unpack_nccl_buffers", other * more),
                _own(now, "host", "call ncclAllReduce", other * more),
                {
                    "cat": "kernel",
                    "name": f"ncclDevKernel_{_MESSAGES[step % 2]}",
                    "ts": now + wait + 20.0 + work,
                    "dur": max(late) - more + 20.0,
                    "stream": 20,
                    "line": "",
                },
            ]
        log = {"cat": "host", "name": "log", "ts": now + 20.0, "dur": 180.0, "stream": 0, "line": "a.py:9: log()"}
        if not loading:
            files[1].append(log)
        now += max(late) + 240.0
    for rank, events in enumerate(files):
        for event in events:
            event["ts"] += 10_000.0 * (rank * 5 % ranks)  # clocks of other machines
    return files


def _own(begin_us: float, cat: str, name: str, length_us: float) -> dict:
    """Return an event that has "nccl" in its name, and is no kernel of NCCL."""
    return {"cat": cat, "name": name, "ts": begin_us, "dur": length_us, "stream": 20, "line": ""}


@exercise(
    title="Which rank do all wait for",
    minutes=12,
    difficulty=2,
    hints=(
        "Nobody leaves a message before the last rank has come. What does a rank do that came early?",
        "A rank that comes early waits inside its kernel of NCCL. So which rank has short ones?",
        'For each rank, add up `dur` of the kernels whose name starts with "nccl". The late rank is the one with the '
        "smallest sum: min(range(len(sums)), key=sums.__getitem__) gives its number.",
    ),
)
def late_rank(ranks: list[list[dict]]) -> int:
    """Return the rank that the others wait for, from the events of each rank."""
    sums = [sum(e["dur"] for e in events if e["cat"] == "kernel" and e["name"].startswith("nccl")) for events in ranks]
    return min(range(len(sums)), key=sums.__getitem__)  # who waits least came last


late_rank.exempt("times are of clocks that count from 0 on", "number_negative number_large limit")
late_rank.exempt("for one rank nobody waits", "one_entry")


@late_rank.checks
def _(case: Case) -> None:
    for late, slower_us, files in (
        (1, {1: 300.0}, {"loading": True, "ranks": 2, "once": 1}),
        (2, {2: 250.0}, {"loading": False, "ranks": 4, "once": 2}),
        (0, {0: 150.0}, {"loading": False, "ranks": 3, "once": 2, "at": 3}),  # the last messages say 2
        (1, {1: 200.0}, {"loading": False, "ranks": 3, "once": 1, "other": 9}),  # "names begin with": others hold it
        (5, {5: 300.0, 6: 60.0}, {"loading": True, "ranks": 8, "once": 0}),
        (3, {3: 180.0, 0: 90.0}, {"loading": False, "ranks": 8, "once": 7}),
    ):
        got = case.call(_files(slower_us, **files))
        case.equal(got, late, why="the rank that comes last to the messages")
    files = _files({1: 300.0}, loading=True, ranks=3, once=1)
    more = [files[0] + 900 * files[0][:1], *files[1:]]  # how many other events a rank has plays no part
    backwards = [events[::-1] for events in files]
    for turned, late in ((files[::-1], 1), (files[1:] + files[:1], 0), (backwards, 1), (more, 1)):
        case.equal(case.call(turned), late, why="the rank that comes last to the messages, whichever that is")


@late_rank.alternative("message by message, who came last: shows also whether it is always the same rank")
def _(ranks):
    messages = [[e["dur"] for e in events if e["cat"] == "kernel" and e["name"].startswith("nccl")] for events in ranks]
    late = [durations.index(min(durations)) for durations in zip(*messages, strict=True)]
    return max(set(late), key=late.count)
