"""What do all ways to start ranks share: a channel to each process, its output, and threads that listen?"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from io import FileIO
from typing import Any

from course_utils.launch.wire import Channel

__all__ = ["Processes", "Put", "command", "folder", "search_path"]

Put = Callable[[int, str, Any], None]  # gives (rank, kind, value) to the launch; called from threads


class Processes:
    """The processes of one launch. What happens to them is put as events, see `report.Seen`; output is "out" or "err"."""

    def __init__(self, nprocs: int, put: Put) -> None:
        self.put = put
        self.channels: list[Channel] = []
        self.outputs: list[FileIO] = []  # of each rank two
        self.threads: list[threading.Thread] = []
        with contextlib.ExitStack() as passed:
            theirs = []
            try:
                for _ in range(nprocs):
                    ours, control = socket.socketpair()
                    self.channels.append(Channel(ours))
                    theirs.append([passed.enter_context(control)])
                    for _ in range(2):
                        end, other = os.pipe()
                        self.outputs.append(FileIO(end))
                        theirs[-1].append(passed.enter_context(FileIO(other, "w")))
                self.start(theirs)
                for rank in range(nprocs):
                    self.run(self._listen, rank)
                    self.run(self._read, rank, "out")
                    self.run(self._read, rank, "err")
            except BaseException:
                self.kill()
                for output in self.outputs:
                    output.close()
                self.close()
                raise

    def start(self, theirs: list[list[Any]]) -> None:
        """Start a process for each rank with its ends of the channel, of stdout and of stderr; `run` what watches it."""
        raise NotImplementedError

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

    def run(self, target: Callable[..., None], *args: Any) -> None:
        """Run `target(*args)` in a thread that `close` waits for."""
        thread = threading.Thread(target=target, args=args, daemon=True, name="launch")
        thread.start()
        self.threads.append(thread)

    def _listen(self, rank: int) -> None:
        try:
            while True:
                kind, value = self.channels[rank].receive()
                self.put(rank, kind, value)
        except (TypeError, ValueError):
            self.put(rank, "garbled", time.perf_counter())
        except (EOFError, OSError):
            pass

    def _read(self, rank: int, stream: str) -> None:
        """Put what a rank writes; the last event is empty."""
        with self.outputs[2 * rank + (stream == "err")] as output:
            while data := output.read(65536):
                self.put(rank, stream, data)
        self.put(rank, stream, b"")


def command(module: str, function: str, number: int) -> list[str]:
    """Return the command that calls a function of this room with a number, with the same path for imports."""
    code = f"import json, sys; sys.path[:] = json.loads(sys.argv[2]); from course_utils.launch import {module}; "
    return [
        sys.executable,
        "-c",
        f"{code}{module}.{function}(int(sys.argv[1]))",
        str(number),
        json.dumps(search_path()),
    ]


def folder() -> str:
    """Return the current folder; the home folder if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.path.expanduser("~")


def search_path() -> list[str]:
    """Return `sys.path` as it reads from any folder."""
    return [os.path.join(folder(), entry) for entry in sys.path]
