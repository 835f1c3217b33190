"""Work of the program itself between two operators of the GPU: NumPy, operators on the CPU, plain Python.

No clock of a GPU knows it. A thread looks every few milliseconds at what the program's thread does: where that has
asked nothing of the GPU meanwhile, the time that the processor took is the program's own, as this machine takes it.
"""

import contextlib
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import torch

from simgpu.clock.lines import Part, Row, rows
from simgpu.ground import places

EVERY_S = 0.002
_OURS = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_WATCHING = str(Path(__file__).parent / "observer.py")  # is on the stack of whatever a module does
_ELSEWHERE = (
    "<frozen importlib",  # imports
    *(str(Path(_TORCH) / part) for part in ("_dynamo", "_inductor", "_functorch", "fx", "optim", "utils/data")),
)


class OwnWork:
    """Looks at the thread that has made it until `stop`; `asked` tells what was asked of the GPU: work, or to free."""

    def __init__(self, asked: Callable[[], object]) -> None:
        self._asked, self._thread = asked, threading.get_ident()
        self._steps: list[dict[str, float]] = [defaultdict(float)]  # seconds of each line, by step
        self._ended = threading.Event()
        clock = getattr(time, "pthread_getcpuclockid", None)
        self._clock = None if clock is None else clock(self._thread)
        with contextlib.suppress(RuntimeError):  # a browser's Python has no threads: then nothing is seen
            threading.Thread(target=self._look, name="simgpu", daemon=True).start()

    def step(self) -> None:
        """Begin the next step."""
        self._steps.append(defaultdict(float))

    def stop(self) -> None:
        self._ended.set()

    def rows(self) -> list[Row]:
        """Return what each line takes in a step, without the first one and without what only one step has done.

        Where no step has ended, that is the whole run.
        """
        steps = self._steps[1:-1] if len(self._steps) > 1 else self._steps
        times = Counter(line for step in steps for line in step)
        habits = {line for line, count in times.items() if count > 1 or len(self._steps) == 1}
        return rows((Part(line, s) for step in steps for line, s in step.items() if line in habits), max(1, len(steps)))

    def _now_s(self) -> float:
        """Return how long the thread has had a processor; where the system does not tell, how long it has lived."""
        return time.perf_counter() if self._clock is None else time.clock_gettime(self._clock)

    def _look(self) -> None:
        """Count the time between two looks at the same work: between others the GPU's may have been simulated."""
        then_s, before, was_own = self._now_s(), None, False
        while not self._ended.wait(EVERY_S):
            now_s, asked = self._now_s(), self._asked()
            line = _own_line(_stack(self._thread)) if asked == before else ""
            if line and was_own:
                self._steps[-1][line] += now_s - then_s
            then_s, before, was_own = now_s, asked, bool(line)


def _stack(thread: int) -> list[tuple[CodeType, int]]:
    """Return what a thread runs, the innermost first. No frame is kept: it would keep tensors alive."""
    frame, stack = sys._current_frames().get(thread), list[tuple[CodeType, int]]()
    while frame is not None:
        stack.append((frame.f_code, frame.f_lineno or frame.f_code.co_firstlineno))  # None between two lines
        frame = frame.f_back
    return stack


def _own_line(stack: list[tuple[CodeType, int]]) -> str:
    """Return the reader's innermost line, "" where simgpu works for it, or something that is counted elsewhere."""
    line = ""
    for code, number in stack:
        file = code.co_filename
        if file.startswith(_ELSEWHERE) or (not line and file.startswith(_OURS) and file != _WATCHING):
            return ""
        if not line and places.is_readers(file, code.co_name):
            line = places.named(file, number)
    return line
