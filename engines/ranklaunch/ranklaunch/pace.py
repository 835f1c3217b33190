"""Processor time that the machine gave to the ranks, and what they used of it.

A limit in seconds is meant for a machine that has time for the ranks. While another program has the cores, a rank that
could run is held up, and that is not its fault: such time does not count. What counts is the rest, in which the rank
ran, or waited for something else than a core. Time counts in full where the ranks themselves fill all cores.

Linux says for each thread how long it was held up (proc(5), sched-stats.rst of the kernel). macOS says how many threads
want to run on average, from which a share is computed. Windows says neither: there all time counts.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

LAST_RESORT = 20  # a limit is over after so many times its seconds, however little time the ranks were given
_LINUX = sys.platform == "linux"


class Work(NamedTuple):
    """What a process and all that it started have used of the cores, and missed, since they began."""

    cpu_s: float
    held_s: float  # of its thread that was held up longest
    runnable: bool = False  # whether one of the threads has a core now, or wants one


class Pace:
    """A limit for ranks, in seconds that the machine gives to them. It begins when this object is made.

    `pids` are the processes of the ranks, and more of them may start later; `late` says for which the limit is meant.
    """

    def __init__(self, limit_s: float, pids: dict[int, int], late: Callable[[], Iterable[int]]) -> None:
        self.limit_s, self.pids, self.late = limit_s, pids, late
        self.begin_s = time.monotonic()
        self.before = {rank: work(pid) for rank, pid in pids.items()}

    def left_s(self) -> float:
        """Return how many seconds are left: 0 or less where the limit is over."""
        wall_s, given_s, _ = self._spent()
        return min(self.limit_s - given_s, LAST_RESORT * self.limit_s - wall_s)

    def cut_short(self) -> bool:
        """Return whether the ranks have not been given the limit: once it is over, it is so as the last resort."""
        return self._spent()[1] < self.limit_s

    def busy(self) -> str:
        """Return a sentence where something else than the ranks had the machine for most of the time, else nothing."""
        wall_s, given_s, cpu_s = self._spent()
        if given_s >= wall_s / 2:
            return ""
        got = "" if cpu_s is None else f": in {wall_s:.0f} s the ranks got {cpu_s:.1f} s of CPU time"
        return f"This machine is busy{got}."

    def _spent(self) -> tuple[float, float, float | None]:
        """Return the seconds since the begin, how many of them were given, and how many were computed, if known."""
        wall_s, works = time.monotonic() - self.begin_s, [self._since(rank) for rank in self.late()]
        known = [one.cpu_s for one in works if one is not None]
        return wall_s, given(wall_s, works, cores()), sum(known) if known else None

    def _since(self, rank: int) -> Work | None:
        """Return what a rank has used and missed since the begin; None where the system does not say."""
        now, before = work(self.pids.get(rank, 0)), self.before.get(rank) or Work(0.0, 0.0)
        return now and Work(now.cpu_s - before.cpu_s, max(0.0, now.held_s - before.held_s), now.runnable)


def given(wall_s: float, ranks: Iterable[Work | None], cores: int) -> float:
    """Return how many of `wall_s` seconds the machine gave to ranks that have used and missed so much."""
    known = [one for one in ranks if one is not None]
    if not known:
        return wall_s * _share(cores)
    held_s = sum(one.held_s for one in known)  # ranks that wait for one that is held up lose its time, too
    return min(wall_s, max(wall_s - held_s, sum(one.cpu_s for one in known) / cores))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _share(cores: int) -> float:
    """Return the share of the time that a thread gets which wants to run, 0 to 1."""
    with contextlib.suppress(OSError, AttributeError):  # Windows has no such function
        return min(1.0, cores / max(os.getloadavg()[0], 1e-9))
    return 1.0


def work(pid: int) -> Work | None:
    """Return what a process, its threads, and the processes that it started have used; None if Linux does not say."""
    try:
        works = [_used(pid)]
    except (OSError, ValueError):  # no Linux, not compiled in, or the process has ended
        return None
    for child in _children(pid):
        with contextlib.suppress(OSError, ValueError):
            works.append(_used(child))
    return Work(sum(one.cpu_s for one in works), max(one.held_s for one in works), any(one.runnable for one in works))


def _used(pid: int) -> Work:
    """Return what a process has used, and its children that ended, and what its threads missed."""
    ticks = sum(map(int, _stat(f"/proc/{pid}/stat")[11:15]))
    missed_ns, runnable = [int(_read(f"/proc/{pid}/schedstat").split()[1])], False
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):  # the thread has ended since
            missed_ns.append(int(_read(f"/proc/{pid}/task/{thread}/schedstat").split()[1]))
            runnable |= _stat(f"/proc/{pid}/task/{thread}/stat")[0] == "R"
    return Work(ticks / os.sysconf("SC_CLK_TCK"), max(missed_ns) / 1e9, runnable)


def _stat(path: str) -> list[str]:
    """Return the fields of such a file from the third on, the state; the second may hold blanks and brackets."""
    return _read(path).rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    """Return the processes that a process started, and those that these started."""
    children = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return children + [one for child in children for one in _children(child)]


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
