"""What do the two ways to start ranks share: a channel to each process, its output, its end, and its command?"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable

from course_utils.launch import wire

__all__ = ["START_S", "Processes", "Put", "command"]

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


def command(module: str, function: str, number: int) -> list[str]:
    """Return the command that calls a function of this room with a number, with the same path for imports."""
    path = json.dumps([os.path.abspath(entry) for entry in sys.path])
    code = f"import json, sys; sys.path[:] = json.loads(sys.argv[2]); from course_utils.launch import {module}; "
    return [sys.executable, "-c", f"{code}{module}.{function}(int(sys.argv[1]))", str(number), path]
