"""How does this process get ranks from its fork server (`server`), and when does the server start and end?"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from course_utils.launch import interrupts
from course_utils.launch.processes import Processes, Put, command
from course_utils.launch.wire import Channel

__all__ = ["Forked", "preload"]


class Forked(Processes):
    """Ranks forked by the server of this process. They are killed when the session with their parent is closed."""

    def __init__(self, nprocs: int, put: Put) -> None:
        ours, self.theirs = socket.socketpair()
        self.session = Channel(ours)
        super().__init__(nprocs, put)

    def start(self, theirs: list[list[Any]]) -> None:
        with self.theirs as session:
            _send(b"start", [session.fileno(), *(end.fileno() for ends in theirs for end in ends)])
        self.run(self._watch, set(range(len(theirs))))

    def _watch(self, running: set[int]) -> None:
        with contextlib.suppress(EOFError, OSError):
            while running:
                rank, kind, value = self.session.receive()
                self.put(rank, kind, value)
                if kind == "ended":
                    running.remove(rank)
        for rank in running:  # the server is gone, and with it the ranks
            self.put(rank, "ended", (None, time.perf_counter()))

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.session.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.theirs.close()
        self.session.close()
        super().close()


class _Server:
    """The server of this process, started at the first launch; it ends with this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.main, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # requests stay apart
        with theirs:
            self.process = subprocess.Popen(
                command("server", "serve", theirs.fileno()),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        try:
            while not wait([self.main], 0.1):
                interrupts.check()
            if self.main.recv(5) != b"ready":
                words = self.process.communicate()[1].decode(errors="replace").strip()
                raise RuntimeError(f"the process that starts the ranks could not start:\n{words}")
        except BaseException:
            self.process.kill()
            self.stop()
            raise
        atexit.register(self.stop)

    def stop(self) -> None:
        """Tell the server to end, and wait for it; a forked copy of this process leaves it alone."""
        atexit.unregister(self.stop)
        if self.pid == os.getpid():
            self.main.close()
            self.process.stderr.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=3.0)


_lock = threading.Lock()
_running: list[_Server] = []


def _send(data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send the server a request. Starts a server where there is none, or it has died, or is that of a parent."""
    while not _lock.acquire(timeout=0.1):  # another thread starts the server
        interrupts.check()
    try:
        if _running and (_running[0].pid != os.getpid() or _running[0].process.poll() is not None):
            _running.pop().stop()
        if not _running:
            _running.append(_Server())
        try:
            socket.send_fds(_running[0].main, [data], descriptors)
        except OSError:  # it died just now
            _running.pop().stop()
            _running.append(_Server())
            socket.send_fds(_running[0].main, [data], descriptors)
    finally:
        _lock.release()


def preload(module: str) -> None:
    """Let the server import a module."""
    _send(module.encode())
