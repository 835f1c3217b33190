"""Work of the program itself between two operators of the GPU: NumPy, operators on the CPU, plain Python.

No clock of a GPU knows it. A thread looks every few milliseconds at what the program's thread does: the time that the
processor took since that has last asked anything of the GPU is the program's own, as this machine takes it. So is the
time in which it slept, as while a file, a server or another process keeps it waiting, unless another thread has asked
the GPU meanwhile. The end of each piece of work is not seen, about a millisecond, nor are some pieces of less than two.
"""

import contextlib
import ctypes
import faulthandler
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch

from simgpu.clock.lines import Part, Row, rows
from simgpu.ground import places

EVERY_S = 0.002
_READS_ONE = sys.version_info < (3, 12)  # 3.11 lists threads before their records are filled: reading all crashes
python_record = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))  # it ends with its thread
_OTHERS_S = 1.0  # for so long after another thread has asked the GPU, this one is taken to wait for it
_OURS = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_WATCHING = str(Path(__file__).parent / "observer.py")  # is on the stack of whatever a module does
_ENTRY = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
Entry = tuple[str, int, str]  # file, line and function
_PARTS = ("_dynamo", "_inductor", "_functorch", "fx", "nn/parallel", "optim", "utils/data")
_ELSEWHERE = ("<frozen importlib", *(str(Path(_TORCH, one)) for one in _PARTS))


class OwnWork:
    """Looks at the thread that has made it until `stop`.

    `asked` tells when the GPU was last asked for work, by `now_s`, and what was asked: work, or to free.
    """

    def __init__(self, asked: Callable[[], tuple[float, ...]]) -> None:
        self._asked, self._thread, self._record = asked, threading.get_ident(), python_record()
        self._state = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._steps: list[dict[str, float]] = [defaultdict(float)]  # seconds of each line, by step
        self._ended, self._interval, self._others_s = threading.Event(), sys.getswitchinterval(), -_OTHERS_S
        sys.setswitchinterval(EVERY_S / 4)  # else Python lets nobody look at a thread for 5 ms
        clock = getattr(time, "pthread_getcpuclockid", None)
        self._clock = None if clock is None else clock(self._thread)
        if _READS_ONE and threading.current_thread() is not threading.main_thread():
            return  # its record may end before it is looked at
        with contextlib.suppress(RuntimeError):  # a browser's Python has no threads: then nothing is seen
            threading.Thread(target=self._look, name="simgpu", daemon=True).start()

    def step(self) -> None:
        """Begin the next step."""
        self._steps.append(defaultdict(float))

    def stop(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            sys.setswitchinterval(self._interval)

    def rows(self) -> list[Row]:
        """Return what each line takes in a step, without the first one and without what only one step has done.

        Where no step has ended, that is the whole run.
        """
        steps = self._steps[1:-1] if len(self._steps) > 1 else self._steps
        times = Counter(line for step in steps for line in step)
        habits = {line for line, count in times.items() if count > 1 or len(self._steps) == 1}
        return rows((Part(line, s) for step in steps for line, s in step.items() if line in habits), max(1, len(steps)))

    def now_s(self) -> float:
        """Return how long the thread has had a processor; where the system does not tell, how long it has lived."""
        return time.perf_counter() if self._clock is None else time.clock_gettime(self._clock)

    def asked_s(self) -> float:
        """Return `now_s`, and note when it is another thread that asks the GPU for work."""
        if threading.get_ident() != self._thread:
            self._others_s = time.perf_counter()
        return self.now_s()

    def _look(self) -> None:
        """Count the time since the last look, or since the GPU was last asked: before, it may have been simulated."""
        then_s, before, was_own, seen_s = self.now_s(), self._asked(), False, time.perf_counter()
        slept: list[tuple[dict[str, float], str, float]] = []  # since it last ran: step, line and seconds
        with contextlib.suppress(OSError), tempfile.TemporaryFile(buffering=0) as file:
            while not self._ended.wait(EVERY_S / 4 if was_own else EVERY_S):
                now_s, asked, looks_s = self.now_s(), self._asked(), time.perf_counter()
                waits = looks_s - self._others_s < _OTHERS_S
                if waits:
                    slept.clear()
                elif now_s > then_s:
                    while slept:
                        step, line, s = slept.pop()
                        step[line] += s
                mine = asked == before or now_s - asked[0] > EVERY_S / 4
                stack = _stack(self._thread, self._record, file) if mine else []
                line = _own_line(stack)
                if line and (was_own or asked != before):
                    freed = asked[2] > before[2] if asked[1] == before[1] else asked[2]  # pages of simulated memory
                    if now_s > then_s and not freed:
                        self._steps[-1][line] += now_s - max(then_s, asked[0])
                    elif not waits and not stack[0][0].startswith(_TORCH) and self._sleeps(now_s):
                        slept.append((self._steps[-1], line, looks_s - seen_s))
                then_s, before, was_own, seen_s = now_s, asked, bool(line), looks_s

    def _sleeps(self, now_s: float) -> bool:
        """Return whether the thread sleeps. If it waits for Python's lock, which is ours now, its clock has gone on."""
        return self._state.read_text().rpartition(")")[2].split()[0] in "SD" and self.now_s() == now_s  # Linux has it


def _stack(thread: int, record: int, file: IO[bytes]) -> list[Entry]:
    """Return what a thread runs, the innermost first, by its number and by the address of Python's record of it.

    A file has it. No frame is touched: that would keep tensors alive, and some of compiled functions are no frames.
    """
    file.seek(0)
    if _READS_ONE:
        ctypes.pythonapi["_Py_DumpTraceback"](file.fileno(), ctypes.c_void_p(record))
    else:
        faulthandler.dump_traceback(file)
    file.truncate()
    file.seek(0)
    text = file.read().decode("ascii" if os.sep == "\\" else "unicode_escape", "replace")
    threads = (one for one in text.split("\n\n") if _READS_ONE or re.match(rf"Thread 0x0*{thread:x}\b", one))
    return [(path, int(number), name) for path, number, name in _ENTRY.findall(next(threads, ""))]


def _own_line(stack: list[Entry]) -> str:
    """Return the reader's innermost line, "" where simgpu works for it, or something that is counted elsewhere."""
    line = ""
    for file, number, name in stack:
        if file.startswith(_ELSEWHERE) or (not line and file.startswith(_OURS) and file != _WATCHING):
            return ""
        if not line and places.is_readers(file, name):
            line = places.named(file, number)
    return line
