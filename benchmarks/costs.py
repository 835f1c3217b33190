"""How long do the parts take that a reader waits for: checks, questions, imports, the reading of a kernel's text?

    python -m benchmarks.costs

Each is a ratio within this run. What has nothing to be compared with is measured in units: a unit is the time in which
this machine's processor adds the squares of a million numbers, about 0.06 s on a quick one, measured anew before each
row. Times are those of processors, since other programs may have the cores. Exit status 1 beyond a limit.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil

import kernelcheck
from course_utils import devices
from gpu_course import exam, recall
from gpu_course.catalogue import registry
from gpu_course.checks import sandbox

CHECK, RANKS, ITEM, RECALL, STATE, STOREYS, ENGINE, GROWTH = 17.0, 67.0, 3.4, 84.0, 0.034, 2.5, 25.0, 3.0  # limits
TEXTS = {  # what a careless pattern reads in time that grows with the square
    "blanks": "extern __shared__ " + " " * 20_000,
    "extern": "extern " * 10_000,
    "launch bounds": "__global__ __launch_bounds__(" * 4_000,
    "templates": "template <" * 7_500,
    "declarators": "float a" + ", b" * 10_000 + "[",
    "comments": "/*" * 20_000,
    "includes": "#include <cuda" * 4_000,
    "brackets": "(" * 30_000,
    "words": "a " * 30_000,
}
_IMPORT = "import time, {before}\nbegin = time.process_time()\nimport {name}\nprint(time.process_time() - begin)"
Row = tuple[str, float, float]  # what it is, how much it takes, its limit


def spent_s() -> float:
    """Return the seconds that processors worked for this process, and for ranks that its server saw end."""
    total_s = time.process_time()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended just now
            times = child.cpu_times()
            total_s += times.children_user + times.children_system
    return total_s


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """Return the seconds of the quickest of several runs: the first may load more, and other work only adds.

    What was imported is kept out of garbage collections, which take as long as all that there is.
    """
    found = []
    for _ in range(times):
        gc.collect()
        gc.freeze()
        begin_s = spent_s()
        work()
        found.append(spent_s() - begin_s)
    return min(found)


def units(work: Callable[[], object], times: int = 3) -> float:
    """Return how long `work` takes in units."""
    return seconds(work, times) / seconds(lambda: sum(number * number for number in range(1_000_000)))


def imported_units(name: str, before: str) -> float:
    """Return how long the import of a package takes in a fresh process that has imported `before`."""
    command = [sys.executable, "-c", _IMPORT.format(name=name, before=before)]
    took = lambda: float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: E731
    return min(took() for _ in range(3)) / seconds(lambda: sum(number * number for number in range(1_000_000)))


def growth(text: str) -> float:
    """Return how many times longer a text of twice the length takes to be read; the compiler's time does not count."""

    def read(text: str) -> None:
        with contextlib.suppress(kernelcheck.CompileError):
            kernelcheck.compile_cuda(f"__global__ void k(float* x) {{ x[0] = 1; }}\n{text}", "k")

    return seconds(lambda: read(text + text), 5) / max(seconds(lambda: read(text), 5), 1e-4)


def rows() -> Iterator[Row]:
    """Measure one after the other."""
    places = devices.check_devices()
    for exercise in registry():
        if kernelcheck.why_not() and exercise.name in ("block_sums", "transpose"):  # which need a C++ compiler
            continue
        limit = RANKS if "ranks" in exercise.task.where else CHECK
        found = units(lambda exercise=exercise: exercise.examine(exercise.reference, places), 2)
        yield f"check of {exercise.lesson} {exercise.name}, units", found, limit
    yield "what a check notes and puts back, units", _state_units(places[-1]), STATE
    for found in exam.bank():
        yield f"item {found.name}, units", units(lambda found=found: found.item(0)), ITEM
    yield "the questions of recall, units", units(lambda: list(map(recall.ask, _LESSONS)), 1), RECALL
    yield "import of the course and the helper, units", imported_units("gpu_course, course_utils", "sys"), STOREYS
    for name in ("simgpu", "kernelcheck", "ranklaunch"):
        yield f"import of {name}, units", imported_units(name, "torch"), ENGINE
    for name, text in TEXTS.items() if not kernelcheck.why_not() else ():
        yield f"twice the text of {name}, times", growth(text), GROWTH


_LESSONS = [f"{number:02}" for number in range(2, 14)]


def _state_units(place: object) -> float:
    return units(lambda: [sandbox.State.capture(place).restore(draws=False) for _ in range(20)]) / 20


def main() -> int:
    """Print each row as it is measured, and at the end those beyond their limits; return 0 if there are none."""
    beyond = []
    for name, found, limit in rows():
        line = f"{name:64}{found:8.3g}  (at most {limit:g})"
        print(line, flush=True)
        if found > limit:
            beyond.append(line)
    print("\n".join(["beyond the limit:", *beyond]) if beyond else "all within their limits")
    return int(bool(beyond))


if __name__ == "__main__":
    raise SystemExit(main())
