"""What do the files of a training's ranks say, and which rank do the others wait for?"""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_course.checks import Case, lesson

__all__ = ["Shares", "Trace", "late_rank", "read_trace"]

exercise = lesson("06")

_ON_GPU = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy"}
_ON_HOST = ("cpu_op", "cuda_runtime", "cuda_driver")
_PARTS = ("enumerate(DataLoader", "Optimizer.")  # the parts of a program that PyTorch itself names


@dataclass(frozen=True)
class Shares:
    """Shares of the time from the first event of a GPU to its last, 0 to 1; `hidden` is one of the messages' time."""

    idle: float  # nothing runs on the GPU, neither kernel nor copy
    computing: float  # at least one kernel runs that is not one of NCCL
    messages: float  # at least one kernel of NCCL runs
    hidden: float  # of the time of the messages, that in which a kernel computes


@dataclass(frozen=True)
class Trace:
    """One file: which rank of how many, on which GPU, its events as lesson 06 has them, and when all was done."""

    rank: int
    ranks: int
    gpu: str
    events: list[dict]
    end_us: float

    @property
    def shares(self) -> Shares:
        """How the GPU spent its time. Raises ValueError where it has no event."""
        on_gpu = [e for e in self.events if e["cat"] != "host"]
        if not on_gpu:
            raise ValueError("the trace has no event of a GPU: profile with ProfilerActivity.CUDA")
        kernels = [e for e in on_gpu if e["cat"] == "kernel"]
        busy = _spans(on_gpu)
        messages = _spans(e for e in kernels if e["name"].startswith("nccl"))
        computing = _spans(e for e in kernels if not e["name"].startswith("nccl"))
        total, said = busy[-1][1] - busy[0][0], _length(messages)
        both = said + _length(computing) - _length(_merged(messages + computing))
        idle = 1 - _length(busy) / total
        return Shares(idle, _length(computing) / total, said / total, both / said if said else 0.0)


def read_trace(path: str | Path) -> Trace:
    """Return what a file of `torch.profiler` (.json or .json.gz) or of the simulator says; times begin at 0.

    A file of the profiler without stacks has no lines. There `line` is the name of the outermost operator or call of
    the host's thread, or "enumerate(DataLoader)…" while it waits for a batch; of Python's own time there is no event.
    Raises ValueError where the file has no events.
    """
    packed = Path(path).read_bytes()
    written = json.loads(gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed)
    entries = [e for e in written.get("traceEvents", ()) if e.get("ph") == "X" and e.get("cat") != "Trace"]
    if not entries:
        raise ValueError(f"{path} has no events")
    simulated = str(written.get("note", "")).startswith("simulated")
    host = _simulated_host(entries) if simulated else _outermost(e for e in entries if _of_host(e))
    begin = min(e["ts"] for e in entries)
    events = [_event(e, "host", begin) for e in host]
    events += [_event(e, _ON_GPU[e["cat"]], begin) for e in entries if e.get("cat") in _ON_GPU]
    events.sort(key=lambda e: e["ts"])
    about = written.get("distributedInfo") or {}
    gpus = {gpu.get("name", "") for gpu in written.get("deviceProperties", ())}
    end_us = max(e["ts"] + e["dur"] for e in events)
    return Trace(about.get("rank", 0), about.get("world_size", 1), ", ".join(sorted(gpus)), events, end_us)


def _event(entry: dict, kind: str, begin: float) -> dict:
    """Return an event in the lesson's form, with the time since `begin`, in µs."""
    details = entry.get("args", {})
    # nanoseconds: times of day in µs leave no more digits in a float
    times = {"ts": round(entry["ts"] - begin, 3), "dur": entry.get("dur", 0)}
    return {
        "cat": kind, "name": entry["name"], **times, "stream": details.get("stream", 0),
        "line": details.get("line", entry["name"]),
    }  # fmt: skip


def _simulated_host(entries: list[dict]) -> list[dict]:
    """Return the calls of the host and its own work, as the lesson's `read_events` does."""
    return [e for e in entries if e.get("cat") == "cuda_runtime" or "note" in e.get("args", {})]


def _of_host(entry: dict) -> bool:
    return entry.get("cat") in _ON_HOST or (entry.get("cat") == "user_annotation" and entry["name"].startswith(_PARTS))


def _outermost(entries: Iterable[dict]) -> list[dict]:
    """Return the events that lie inside no other event of their thread."""
    until: dict[tuple, float] = {}
    outermost = []
    for entry in sorted(entries, key=lambda e: (e["ts"], -e.get("dur", 0))):
        thread = entry["pid"], entry["tid"]
        if entry["ts"] >= until.get(thread, entry["ts"]):
            until[thread] = entry["ts"] + entry.get("dur", 0)
            outermost.append(entry)
    return outermost


def _spans(events: Iterable[dict]) -> list[tuple[float, float]]:
    """Return when at least one of the events was going on, as (begin, end) in order of time."""
    return _merged([(e["ts"], e["ts"] + e["dur"]) for e in events])


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def _length(spans: list[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in spans)


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


late_rank.leaves_out("times are of clocks that count from 0 on", "number_negative number_large limit")
late_rank.leaves_out("for one rank nobody waits", "one_entry")


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
