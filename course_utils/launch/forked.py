"""How does this process get ranks from its fork server (`server`), and when does the server start and end?"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import threading
import time

from course_utils.launch import wire
from course_utils.launch.processes import Processes, Put, command

__all__ = ["Forked", "preload"]


class Forked(Processes):
    """Ranks forked by the server of this process. The server kills them when the session with it is closed."""

    def __init__(self, nprocs: int, put: Put) -> None:
        super().__init__(put)
        ours, theirs = socket.socketpair()
        self.session = wire.Channel(ours)
        outputs: list[tuple[int, str, int]] = []
        try:
            with contextlib.ExitStack() as passed:
                passed.enter_context(theirs)
                numbers = [theirs.fileno()]
                for rank in range(nprocs):
                    mine, control = socket.socketpair()
                    self.channels.append(wire.Channel(mine))
                    passed.enter_context(control)
                    numbers.append(control.fileno())
                    for stream in ("out", "err"):
                        end, other = os.pipe()
                        outputs.append((rank, stream, end))
                        passed.callback(os.close, other)
                        numbers.append(other)
                _request(numbers)
        except BaseException:
            for _, _, end in outputs:
                os.close(end)
            self.close()
            raise
        for output in outputs:
            self.read_output(*output)
        for rank in range(nprocs):
            self.listen(rank)
        self.run(self._watch)

    def _watch(self) -> None:
        running = set(range(len(self.channels)))
        with contextlib.suppress(EOFError, OSError):
            while running:
                kind, *values = self.session.receive()
                if kind == "pids":
                    self.pids = dict(enumerate(values[0]))
                else:
                    running.discard(values[0])
                    self.put(values[0], "ended", *values[1:])
        for rank in running:  # the server is gone, and with it the ranks
            self.put(rank, "ended", None, time.perf_counter())

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.session.send("kill")

    def close(self) -> None:
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
            if self.main.recv(5) != b"ready":
                words = self.process.communicate()[1].decode(errors="replace").strip()
                raise RuntimeError(f"the process that starts the ranks could not start:\n{words}")
        except BaseException:  # an interrupt, too: the error, and this with it, may live for long
            self.main.close()
            self.process.stderr.close()
            self.process.kill()
            self.process.wait()
            raise
        atexit.register(self.stop)

    def usable(self) -> bool:
        """Return whether the server lives and is ours: a forked copy of this process needs another."""
        return self.pid == os.getpid() and self.process.poll() is None

    def stop(self) -> None:
        """Tell the server to end, and wait for it."""
        if self.pid == os.getpid():
            self.main.close()
            self.process.stderr.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=3.0)


_lock = threading.Lock()
_running: list[_Server] = []


def _request(descriptors: list[int]) -> None:
    """Let the server fork ranks with these descriptors. Starts a server where there is none or it has died."""
    with _lock:
        for last in (False, True):
            if not (_running and _running[-1].usable()):
                for old in _running:
                    atexit.unregister(old.stop)
                    old.stop()
                _running[:] = [_Server()]
            try:
                socket.send_fds(_running[-1].main, [b"start"], descriptors)
                return
            except OSError:  # it died just now
                if last:
                    raise
                _running[-1].process.wait(timeout=3.0)


def preload(module: str) -> None:
    """Let the server import a module, if there is a server."""
    with _lock, contextlib.suppress(OSError):
        if _running and _running[-1].usable():
            _running[-1].main.sendall(module.encode())
