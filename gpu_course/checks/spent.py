"""Time that code has had of its limit: running or sleeping, without waiting for a core.

A limit of the clock on the wall refuses right answers on a busy machine, and one of processor time never ends an answer
that sleeps. So time counts as it passes, less that in which a thread was ready to run and no core was free. On Linux
the kernel says so of each thread. Elsewhere a stretch of time counts in full where the machine had half a core to
spare; where it had none, as much of it counts as the busiest process ran.

A virtual machine may stand still for seconds, and then its kernel says that the code ran all the while. Who looks later
than he meant to has met that, or one long call into compiled code: so a stretch counts as `MOST` times the meant one.
"""

import contextlib
import math
import os
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

try:
    import psutil
except ImportError:  # in a browser: one process, and a machine that is taken to have a core to spare
    psutil = None

LINUX = sys.platform == "linux"
SPARE = 0.5  # cores
MOST = 2.0  # times the time after which a look was meant to come


@dataclass(frozen=True)
class _Seen:
    """What was seen of some processes at a moment: by thread, or by process, how long it ran and waited for a core."""

    at_s: float
    ran_s: dict[tuple[int, int], float]
    waited_s: dict[tuple[int, int], float]
    idle_s: float  # of all cores of the machine


class Spent:
    """The time that a process and its children have had since this was made: `seconds`, as of the last `look`.

    `wall_s` is how long it was on the wall. Of this process only the thread that makes this is looked at for the first
    stretch: most code ends in it, and a look at all takes a millisecond.
    """

    def __init__(self, pid: int | None = None, thread: int | None = None) -> None:
        self.pid, self.seconds = pid or os.getpid(), 0.0
        self._begin_s = self._last_s = time.monotonic()
        self._before = _look(pid) if pid else _look_at_one(thread or threading.get_native_id())
        self._first = pid is None

    @property
    def wall_s(self) -> float:
        """Seconds on the wall since this was made."""
        return time.monotonic() - self._begin_s

    def look(self, meant_s: float = math.inf) -> float:
        """Count the time since the last look, which was to be `meant_s` ago, and return `seconds`."""
        now = _look(self.pid)
        passed_s = now.at_s - self._last_s
        had_s = _had_s(self._before, _of(now, self._before) if self._first else now, passed_s)
        self.seconds += min(had_s, MOST * meant_s)
        self._before, self._last_s, self._first = now, now.at_s, False
        return self.seconds


def _of(now: _Seen, before: _Seen) -> _Seen:
    """Return the part of a reading that was there before; how much of the rest is new is not known."""
    ran_s, waited_s = ({key: some[key] for key in some if key in before.ran_s} for some in (now.ran_s, now.waited_s))
    return replace(now, ran_s=ran_s, waited_s=waited_s)


def _had_s(before: _Seen, now: _Seen, passed_s: float) -> float:
    """Return how much of the time between two looks the code has had."""
    ran_s = max((value - before.ran_s.get(key, 0.0) for key, value in now.ran_s.items()), default=0.0)
    ran_s = min(ran_s, passed_s)
    if now.waited_s:
        waited_s = sum(value - before.waited_s.get(key, 0.0) for key, value in now.waited_s.items())
        return max(ran_s, passed_s - waited_s)
    spare = now.idle_s - before.idle_s >= SPARE * passed_s
    return passed_s if spare else ran_s


def _look(pid: int) -> _Seen:
    ran_s: dict[tuple[int, int], float] = {}
    waited_s: dict[tuple[int, int], float] = {}
    for one in (pid, *(process.pid for process in below(pid))):
        threads = _threads(one) if LINUX else {}
        for thread, (ran, waited) in threads.items():
            ran_s[one, thread], waited_s[one, thread] = ran / 1e9, waited / 1e9
        if not threads and psutil:
            with contextlib.suppress(psutil.Error, OSError):  # it has ended meanwhile
                times = psutil.Process(one).cpu_times()
                ran_s[one, 0] = times.user + times.system
    return _Seen(time.monotonic(), ran_s, waited_s, _idle_s())


def _idle_s() -> float:
    return psutil.cpu_times().idle if psutil else time.monotonic()


def _look_at_one(thread: int) -> _Seen:
    """Return a look at one thread of this process; where the kernel does not count threads, at this process."""
    now_s, pid = time.monotonic(), os.getpid()
    counted = _counted(pid, thread) if LINUX else None
    if counted:
        return _Seen(now_s, {(pid, thread): counted[0] / 1e9}, {(pid, thread): counted[1] / 1e9}, 0.0)
    return _Seen(now_s, {(pid, 0): time.process_time()}, {}, _idle_s())


def below(pid: int) -> list[Any]:
    """Return the processes below one, as far as they can be seen."""
    if psutil:
        with contextlib.suppress(psutil.Error, OSError):
            return psutil.Process(pid).children(recursive=True)
    return []


def _threads(pid: int) -> dict[int, tuple[int, int]]:
    """Return for each thread how long it ran and waited for a core, in ns; nothing where the kernel does not count it.

    https://docs.kernel.org/scheduler/sched-stats.html
    """
    counts = {}
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if counted := _counted(pid, thread):
                counts[int(thread)] = counted
    return counts


def _counted(pid: int, thread: int | str) -> tuple[int, int] | None:
    """Return how long a thread ran and waited for a core, in ns; None where it has ended or is not counted."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii").split()
        return int(words[0]), int(words[1])
    return None
