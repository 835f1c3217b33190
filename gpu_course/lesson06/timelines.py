"""Events of a profile, by hand and of programs that run, and when they begin and end."""

import inspect
import tomllib
from pathlib import Path

import simgpu
from gpu_course.lesson06.cases import CASES, original, program


def timelines() -> dict[int, simgpu.Timeline]:
    """Return what host and GPU did in each case, by number. Call it through `devices.on_simulated`."""
    return {number: original(number).timeline for number in CASES}


def source(number: int) -> None:
    """Print the program of a case."""
    print(inspect.getsource(program(number)))


def events_of(*rows: tuple) -> list[dict]:
    """Return events from (cat, name, ts, dur, stream, line)."""
    keys = ("cat", "name", "ts", "dur", "stream", "line")
    return [dict(zip(keys, row, strict=True)) for row in rows]


_READ = tomllib.loads(Path(__file__).with_name("events.toml").read_text(encoding="utf-8"))
STEP, STREAMS, PIECES = (events_of(*_READ[name]) for name in ("step", "streams", "pieces"))
RANK, LOADING = (events_of(*_READ[name]) for name in ("rank", "loading"))  # as files of real GPUs are


HALVES = events_of(  # half microseconds, two that begin at once, and an end behind all of them
    ("kernel", "a", 1.5, 3.0, 0, ""),
    ("kernel", "b", 1.5, 6.5, 1, ""),
    ("kernel", "c", 1.5, 0.5, 2, ""),
    ("host", "cudaLaunchKernel", 0.0, 1.5, 0, "step.py:1: y = f(x)"),
    ("host", "cudaStreamSynchronize", 1.5, 8.0, 0, "step.py:2: y.item()"),
)


MEETING = events_of(  # the second begins when the first ends; a line has its time in two pieces
    ("kernel", "b", 6.0, 14.0, 0, ""),
    ("kernel", "a", 2.0, 4.0, 0, ""),
    ("host", "aten::add", 0.0, 1.0, 0, "meet.py:1: x = x + 1"),
    ("host", "aten::mul", 1.0, 0.5, 0, "meet.py:2: x = 2 * x"),
    ("host", "aten::mul", 1.5, 4.0, 0, "meet.py:2: x = 2 * x"),
)
