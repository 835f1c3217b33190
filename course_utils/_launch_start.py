"""How do the processes of the ranks come into being, and who says that one has ended?

On Linux a server process that has imported torch forks them (`_launch_forked`), within milliseconds. Elsewhere each is
a fresh interpreter (`_launch_spawned`): macOS has libraries that do not survive a fork, and Windows has no fork. Why
not `multiprocessing`: its one fork server serves everybody in the process, and its children import the parent's
`__main__` again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable

from course_utils import _launch_wire as wire

__all__ = ["START_S", "Processes", "Put", "command", "preload", "start"]

START_S = 120.0  # for the ranks to be there: fresh interpreters import torch on a machine that may be busy
Put = Callable[..., None]  # gives (rank, kind, *values) to the launch; called from threads


class Processes:
    """The started processes of one launch: a channel to each, and their end."""

    def __init__(self, put: Put) -> None:
        self.put = put
        self.channels: list[wire.Channel] = []
        self.pids: dict[int, int] = {}  # rank: process id
        self.threads: list[threading.Thread] = []

    def kill(self) -> None:
        """Kill all ranks that still run, and what they started."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all connections and end the threads."""
        for channel in self.channels:
            channel.close()
        deadline = time.monotonic() + 1.0
        for thread in self.threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def read_output(self, rank: int, stream: str, descriptor: int) -> None:
        """Put what comes out of a pipe, until its other end is closed; `stream` is "out" or "err"."""

        def read() -> None:
            with contextlib.suppress(OSError):
                while data := os.read(descriptor, 65536):
                    self.put(rank, stream, data)
            os.close(descriptor)
            self.put(rank, "silent", stream)

        self.run(read)

    def listen(self, rank: int) -> None:
        """Put the messages of a rank."""

        def read() -> None:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    kind, *values = self.channels[rank].receive()
                    self.put(rank, kind, *values)

        self.run(read)

    def run(self, target: Callable[[], None]) -> None:
        """Run `target` in a thread that `close` waits for."""
        thread = threading.Thread(target=target, daemon=True, name="launch")
        thread.start()
        self.threads.append(thread)


def start(nprocs: int, put: Put) -> Processes:
    """Start `nprocs` processes that wait for their job; `put` is called from threads with what they say."""
    if _method() == "forkserver":
        from course_utils._launch_forked import Forked

        return Forked(nprocs, put)
    from course_utils._launch_spawned import Spawned

    return Spawned(nprocs, put)


def preload(module: str) -> None:
    """Import a module where ranks are forked from, while nobody waits, so that the next ones have it."""
    if _method() == "forkserver":
        from course_utils import _launch_forked

        _launch_forked.preload(module)


def command(module: str, function: str, number: int) -> list[str]:
    """Return the command that calls a function of this package with a number, with the same path for imports."""
    path = json.dumps([os.path.abspath(entry) for entry in sys.path])
    code = f"import json, sys; sys.path[:] = json.loads(sys.argv[2]); from course_utils import {module} as module; "
    return [sys.executable, "-c", f"{code}module.{function}(int(sys.argv[1]))", str(number), path]


def _method() -> str:
    """Return how ranks are started here; COURSE_LAUNCH=spawn is the way out where a forked rank does not work."""
    method = os.environ.get("COURSE_LAUNCH") or ("forkserver" if sys.platform == "linux" else "spawn")
    if method not in ("forkserver", "spawn"):
        raise ValueError(f"COURSE_LAUNCH is {method!r}, it may be 'forkserver' or 'spawn'")
    return method
