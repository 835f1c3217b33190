"""How do the processes of the ranks come into being?

On Linux a server process that has imported torch forks them (`forked`), within milliseconds. Elsewhere each is
a fresh interpreter (`spawned`): macOS has libraries that do not survive a fork, and Windows has no fork. Why
not `multiprocessing`: its one fork server serves everybody in the process, and its children import the parent's
`__main__` again.
"""

from __future__ import annotations

import os
import sys

from course_utils.launch import forked
from course_utils.launch.processes import Processes, Put
from course_utils.launch.spawned import Spawned

__all__ = ["preload", "start"]


def start(nprocs: int, put: Put) -> Processes:
    """Start `nprocs` processes that wait for their job; `put` is called from threads with what they say."""
    return (forked.Forked if _method() == "forkserver" else Spawned)(nprocs, put)


def preload(module: str) -> None:
    """Import a module where ranks are forked from, while nobody waits, so that the next ones have it."""
    if _method() == "forkserver":
        forked.preload(module)


def _method() -> str:
    """Return how ranks are started here; COURSE_LAUNCH=spawn is the way out where a forked rank does not work."""
    method = os.environ.get("COURSE_LAUNCH") or ("forkserver" if sys.platform == "linux" else "spawn")
    if method not in ("forkserver", "spawn"):
        raise ValueError(f"COURSE_LAUNCH is {method!r}, it may be 'forkserver' or 'spawn'")
    return method
