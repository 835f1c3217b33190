"""Chrome traces of timelines, in the form that `torch.profiler` writes on CUDA.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
Times in it are microseconds; the three digits behind the point keep whole nanoseconds.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from simgpu.clock.journal import Record

_HOST, _PYTHON, _PHASES, _ENGINES = 1000, 1, 999, ("H2D", "D2H", "D2D")
_WAITS = {"synchronize": "cudaDeviceSynchronize", "event.synchronize": "cudaEventSynchronize"}
_COPIES = {"H2D": "Memcpy HtoD", "D2H": "Memcpy DtoH", "D2D": "Memcpy DtoD"}
Event: TypeAlias = dict[str, Any]  # as JSON has it
_NOTE = "simulated by a model of a GPU, not measured; host work is an input"


def text(ranks: Sequence[Any]) -> str:
    """Return the whole file of the timelines of one process or several ranks: one event a line, in order of time."""
    tracks, events = [], []
    for rank, timeline in enumerate(ranks):
        own = _all_events(timeline, timeline.records)
        named = _tracks(timeline, own)
        if len(ranks) > 1:
            begin_ns = timeline.begin_ns - min(rank.begin_ns for rank in ranks)
            for event in named + own:
                _give(event, rank, begin_ns)
        tracks, events = tracks + named, events + own
    return _file(ranks[0], {"rank": 0}, tracks, events)


def text_of_rank(ranks: Sequence[Any], rank: int) -> str:
    """Return the file of one of several ranks, in the form of the file that each process writes on CUDA.

    As in NCCL, a message is a kernel that begins when this rank comes and ends with the message, waiting included.
    """
    timeline = ranks[rank]
    began = {(r.number, r.stream): r.start_ns for r in timeline.records if r.kind == "waits"}
    records = [
        replace(r, name=_nccl(r.name), start_ns=began.get((r.number, r.stream), r.start_ns))
        if r.kind == "message"
        else r
        for r in timeline.records
        if r.kind != "waits"
    ]
    events = _all_events(timeline, records)
    tracks = _tracks(timeline, events)
    after_ns = timeline.begin_ns - min(rank.begin_ns for rank in ranks)
    for event in events:
        event["ts"] = round(event["ts"] + after_ns / 1000, 3)  # whole nanoseconds
    everybody = list(range(len(ranks)))
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": len(ranks)}
    about = {"backend": "nccl", "rank": rank, "world_size": len(ranks), "pg_count": 1}
    return _file(timeline, about | {"pg_config": [group | {"ranks": everybody}]}, tracks, events)


def calls_and_kernels(records: list[Record], start_ns: int, begin_us: float) -> list[Event]:
    """Return the host's CUDA calls, the kernels and the copies as events for a trace that has the operators already.

    Their time is the virtual clock's: what happened at `start_ns` stands at `begin_us` of that trace.
    """
    kinds = ("launch", "wait", "kernel", "copy", "message")
    events = [event for r in records if r.kind in kinds for event in _events(r) if event["cat"] != "cpu_op"]
    for event in events:
        event["ts"] = round(event["ts"] - start_ns / 1000 + begin_us, 3)  # whole nanoseconds
    names = {pid: "CUDA calls" if pid == _HOST else f"GPU {pid}" for pid in sorted({event["pid"] for event in events})}
    return [_head("process_name", pid, name=f"{name} (simulated)") for pid, name in names.items()] + events


def _nccl(name: str) -> str:
    """Return NCCL's kernel name of a message: "all_reduce of 8" becomes "ncclDevKernel_AllReduce of 8"."""
    kind, _, of = name.partition(" ")
    return f"ncclDevKernel_{kind.title().replace('_', '')} {of}".rstrip()


def _all_events(timeline: Any, records: list[Record]) -> list[Event]:
    """Return the events of records, and those of the phases, ranges and queues of their timeline."""
    edges = sorted(edge for record in timeline.select("range") for edge in (record.start_ns, record.end_ns))
    events = [event for record in records for event in _events(_within_its_range(record, edges))]
    events += [_phase(row, phase) for row in timeline.rows for phase in timeline.phases(row)]
    return events + _ranges(timeline) + [event for row in timeline.rows for event in _queue(timeline, row)]


def _within_its_range(record: Record, edges: list[int]) -> Record:
    """Return a record, a launch from the last of `edges` before its end on: ranges hold whole calls."""
    index = bisect_left(edges, record.end_ns)
    if record.kind != "launch" or not index or edges[index - 1] <= record.start_ns:
        return record
    return replace(record, start_ns=edges[index - 1])


def _file(timeline: Any, distributed: dict[str, Any], tracks: list[Event], events: list[Event]) -> str:
    # what encloses comes before what it encloses
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0), event.get("cat") != "user_annotation"))
    head = {
        "schemaVersion": 1, "displayTimeUnit": "ms", "note": _NOTE, "distributedInfo": distributed,
        "deviceProperties": [{"id": _gpu(row), "name": timeline.spec_name} for row in timeline.rows],
    }  # fmt: skip
    lines = ",\n".join(json.dumps(event) for event in tracks + events)
    return f'{json.dumps(head)[:-1]}, "traceEvents": [\n{lines}\n]}}\n'


def _give(event: Event, rank: int, begin_ns: int) -> None:
    """Let an event be one of this rank, whose clock began at `begin_ns`: host and GPU become processes of their own."""
    event["pid"] += rank
    event["ts"] += begin_ns / 1000 if event["ph"] != "M" else 0
    if "id" in event:
        event["id"] += rank * 10**7
    if event["name"] == "process_name":
        event["args"]["name"] = f"rank {rank}: {event['args']['name']}"


def _gpu(row: str) -> int:
    return int(row.partition(":")[2])


def _track(record: Record) -> tuple[int, int]:
    """Return where an event stands, as (process, thread)."""
    if record.row == "host":
        return _HOST, _PYTHON
    return _gpu(record.row), 1000 + _ENGINES.index(record.direction) if record.kind == "copy" else record.stream


def _event(kind: str, category: str, name: str, ns: int, track: tuple[int, int], **more: Any) -> Event:
    return {"ph": kind, "cat": category, "name": name, "ts": ns / 1000, "pid": track[0], "tid": track[1], **more}


def _span(category: str, name: str, record: Record, **args: Any) -> Event:
    return _event("X", category, name, record.start_ns, _track(record), dur=record.duration_ns / 1000, args=args)


def _events(record: Record) -> list[Event]:
    arrow = {"id": record.number}
    if record.kind == "launch":
        copies = record.name.startswith("copy ")
        operator = "aten::copy_" if copies else record.name if "::" in record.name else f"aten::{record.name}"
        call = "cudaMemcpyAsync" if copies else "cudaLaunchKernel"
        return [
            _span("cpu_op", operator, record, line=record.line),
            _span("cuda_runtime", call, record, correlation=record.number, line=record.line),
            _event("s", "ac2g", "ac2g", record.start_ns, _track(record), **arrow),
        ]
    if record.kind == "wait":
        call = _WAITS.get(record.name, "cudaStreamSynchronize")
        return [_span("cuda_runtime", call, record, reason=record.name, line=record.line)]
    if record.kind == "work":
        return [_span("user_annotation", record.name, record, note="host work: an input", line=record.line)]
    if record.kind == "waits":
        return [_span("gpu_user_annotation", record.name, record, line=record.line)]
    if record.kind not in ("kernel", "copy", "message"):
        return []  # ranges
    copy, gpu = record.kind == "copy", _gpu(record.row)
    category, name = ("gpu_memcpy", _COPIES[record.direction]) if copy else ("kernel", record.name)
    which = {"device": gpu, "stream": record.stream, "correlation": record.number}
    cost = {"bytes": record.nbytes, "flops": record.flops, "bound by": record.bound}
    return [
        _span(category, name, record, **which, **cost, line=record.line),
        _event("f", "ac2g", "ac2g", record.start_ns, _track(record), **arrow, bp="e"),
    ]


def _phase(row: str, phase: tuple[str, int, int]) -> Event:
    name, start, end = phase
    return _event("X", "gpu_user_annotation", name, start, (_gpu(row), _PHASES), dur=(end - start) / 1000)


def _ranges(timeline: Any) -> list[Event]:
    """Return the ranges of `record_function`; those of several threads, which need not nest, on tracks of their own."""
    tracks: list[list[int]] = []  # of each the ends of what is open
    events = []
    for record in sorted(timeline.select("range"), key=lambda r: (r.start_ns, -r.end_ns)):
        for ends in tracks:
            ends[:] = [end for end in ends if end > record.start_ns]
        free = [number for number, ends in enumerate(tracks) if not ends or ends[-1] >= record.end_ns]
        number = free[0] if free else len(tracks)
        tracks += [] if free else [[]]
        tracks[number].append(record.end_ns)
        track = (_HOST, _PYTHON + number)
        span = {"dur": record.duration_ns / 1000}
        events.append(_event("X", "user_annotation", record.name, record.start_ns, track, **span))
    return events


def _queue(timeline: Any, row: str) -> list[Event]:
    """Return how many launched operations wait for a GPU, whenever that changes."""
    launched = {r.number: r.end_ns for r in timeline.select("launch")}
    changes = {0: 0}
    for record in timeline.select("kernel", row) + timeline.select("copy", row):
        for when, step in ((launched[record.number], 1), (record.start_ns, -1)):
            changes[when] = changes.get(when, 0) + step
    waiting, events = 0, []
    for when, step in sorted(changes.items()):
        waiting += step
        if step or not when:
            track = (_gpu(row), 0)
            events.append(_event("C", "queue", "operations in the queue", when, track, args={"waiting": waiting}))
    return events


def _tracks(timeline: Any, events: list[Event]) -> list[Event]:
    """Return the names of processes and threads that have events."""
    used = sorted({(event["pid"], event["tid"]) for event in events if event["ph"] != "C"})
    events = []
    for pid in sorted({pid for pid, _ in used}):
        name = "host (simulated)" if pid == _HOST else f"sim:{pid} (simulated {timeline.spec_name})"
        order = 0 if pid == _HOST else pid + 1
        events += [_head("process_name", pid, name=name), _head("process_sort_index", pid, sort_index=order)]
    for pid, tid in used:
        if pid == _HOST:
            name = "Python" if tid == _PYTHON else f"Python, thread {tid}"
        else:
            name = f"copies {_ENGINES[tid - 1000]}" if 1000 <= tid < 2000 else f"stream {tid}"
            name = "parts of the step" if tid == _PHASES else f"messages {tid - 1999}" if tid >= 2000 else name
        events.append(_head("thread_name", pid, tid, name=name))
    return events


def _head(kind: str, pid: int, tid: int = 0, **args: str | int) -> Event:
    """Return what says of a process or thread its name, or where it stands."""
    return {"ph": "M", "name": kind, "ts": 0, "pid": pid, "tid": tid, "args": args}
