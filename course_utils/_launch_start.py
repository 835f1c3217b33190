"""How do the processes of the ranks come into being, and who says that one has ended?

On Linux a server process that has imported torch forks them (`_launch_server`), within milliseconds. Elsewhere each is
a fresh interpreter: macOS has libraries that do not survive a fork, and Windows has no fork. Why not `multiprocessing`:
its one fork server serves everybody in the process, and its children import the parent's `__main__` again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from course_utils import _launch_wire as wire

__all__ = ["Processes", "start"]

# Puts (rank, kind, *values) for the launch that reads it.
Put = Callable[..., None]


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
        for thread in self.threads:
            thread.join(timeout=1.0)

    def read_output(self, rank: int, kind: str, descriptor: int) -> None:
        """Put what comes out of a pipe, until its other end is closed."""

        def read() -> None:
            with contextlib.suppress(OSError):
                while data := os.read(descriptor, 65536):
                    self.put(rank, kind, data)
            os.close(descriptor)
            self.put(rank, "silent", kind)

        self.run(read)

    def listen(self, rank: int, channel: wire.Channel) -> None:
        """Put the messages of a rank."""

        def read() -> None:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    kind, *values = channel.receive()
                    self.put(rank, kind, *values)

        self.run(read)

    def run(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True, name="launch")
        thread.start()
        self.threads.append(thread)


def start(nprocs: int, put: Put) -> Processes:
    """Start `nprocs` processes that wait for their job; `put` is called from threads with what they say."""
    method = os.environ.get("COURSE_LAUNCH", "forkserver" if sys.platform == "linux" else "spawn")
    if method not in ("forkserver", "spawn"):
        raise ValueError(f"COURSE_LAUNCH is {method!r}, it may be 'forkserver' or 'spawn'")
    return (_Forked if method == "forkserver" else _Spawned)(nprocs, put)


class _Forked(Processes):
    """Ranks forked by the server of this process."""

    def __init__(self, nprocs: int, put: Put) -> None:
        super().__init__(put)
        ours, theirs = socket.socketpair()
        self.session, passed = wire.Channel(ours), [theirs]
        outputs = []
        try:
            for _ in range(nprocs):
                mine, control = socket.socketpair()
                self.channels.append(wire.Channel(mine))
                (out, out_end), (err, err_end) = os.pipe(), os.pipe()
                outputs += [(out, err)]
                passed += [control, out_end, err_end]
            _server().request([one if isinstance(one, int) else one.fileno() for one in passed])
        finally:
            for one in passed:
                os.close(one) if isinstance(one, int) else one.close()
        started = threading.Event()
        self.run(lambda: self._watch(started))
        started.wait(10.0)
        for rank, (out, err) in enumerate(outputs):
            self.read_output(rank, "out", out)
            self.read_output(rank, "err", err)
            self.listen(rank, self.channels[rank])

    def _watch(self, started: threading.Event) -> None:
        running = set(range(len(self.channels)))
        with contextlib.suppress(EOFError, OSError):
            while running:
                kind, *values = self.session.receive()
                if kind == "pids":
                    self.pids = dict(enumerate(values[0]))
                    started.set()
                else:
                    running.discard(values[0])
                    self.put(values[0], "ended", *values[1:])
        for rank in running:  # the server is gone, and with it the ranks
            self.put(rank, "ended", None, time.perf_counter())
        started.set()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.session.send("kill")

    def close(self) -> None:
        self.session.close()
        super().close()


class _Server:
    """The server of this process, started at the first launch; it ends with this process."""

    def __init__(self) -> None:
        self.pid, self.lock = os.getpid(), threading.Lock()
        self.main, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _CODE.format("_launch_server", "serve"), str(theirs.fileno()), _path()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        if self.main.recv(5) != b"ready":
            words = self.process.communicate()[1].decode(errors="replace").strip()
            raise RuntimeError(f"the process that starts the ranks could not start:\n{words}")
        atexit.register(self.stop)

    def usable(self) -> bool:
        return self.pid == os.getpid() and self.process.poll() is None

    def request(self, descriptors: list[int]) -> None:
        with self.lock:
            socket.send_fds(self.main, [b"start"], descriptors)

    def preload(self, names: str) -> None:
        with self.lock, contextlib.suppress(OSError):
            self.main.sendall(names.encode())

    def stop(self) -> None:
        if self.pid == os.getpid():
            self.main.close()
            self.process.stderr.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=3.0)


_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from course_utils import {0}; {0}.{1}(int(sys.argv[1]))"
)
_lock = threading.Lock()
_running: list[_Server] = []


def _server() -> _Server:
    """Return the server of this process; a new one where there is none, or it died, or this process was forked."""
    with _lock:
        if not (_running and _running[-1].usable()):
            for old in _running:
                atexit.unregister(old.stop)
            _running[:] = [_Server()]
        return _running[-1]


def preload(names: str) -> None:
    """Import modules in the server while nobody waits, so that the next ranks have them; elsewhere nothing."""
    if _running and _running[-1].usable():
        _running[-1].preload(names)


def _path() -> str:
    return json.dumps([os.path.abspath(entry) for entry in sys.path])


class _Spawned(Processes):
    """Ranks in fresh interpreters, which connect to a port of the loopback interface and show a secret."""

    def __init__(self, nprocs: int, put: Put) -> None:
        super().__init__(put)
        self.processes: list[subprocess.Popen] = []
        new_group = {"start_new_session": True} if os.name == "posix" else {"creationflags": 0x00000200}
        secret = {rank: secrets.token_bytes(32) for rank in range(nprocs)}
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
            for rank in range(nprocs):
                process = subprocess.Popen(
                    [sys.executable, "-c", _CODE.format("_launch_rank", "main"), port, _path()],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, **new_group,
                )  # fmt: skip
                self.processes.append(process)
                self.pids[rank] = process.pid
                process.stdin.write(secret[rank])
                process.stdin.close()
            try:
                self.channels = self._accept(listener, secret)
            except BaseException:
                self.kill()
                raise
        for rank, process in enumerate(self.processes):
            self.read_output(rank, "out", os.dup(process.stdout.fileno()))
            self.read_output(rank, "err", os.dup(process.stderr.fileno()))
            process.stdout.close()
            process.stderr.close()
            self.listen(rank, self.channels[rank])
            self.run(lambda rank=rank: self._watch(rank))

    def _accept(self, listener: socket.socket, secret: dict[int, bytes]) -> list[wire.Channel]:
        """Return a channel to each rank, whatever the order in which they connect. Raises RuntimeError if one died."""
        found: dict[int, wire.Channel] = {}
        listener.settimeout(0.1)
        while len(found) < len(secret):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                for rank, process in enumerate(self.processes):
                    if process.poll() is not None:
                        words = process.stderr.read().decode(errors="replace").strip()
                        raise RuntimeError(f"the process of rank {rank} could not start:\n{words}") from None
                continue
            connection.settimeout(5.0)
            with contextlib.suppress(OSError):
                shown = connection.recv(32, socket.MSG_WAITALL)
                rank = next((r for r, s in secret.items() if secrets.compare_digest(s, shown) and r not in found), None)
                if rank is not None:
                    connection.settimeout(None)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    found[rank] = wire.Channel(connection)
                    continue
            connection.close()
        return [found[rank] for rank in range(len(secret))]

    def _watch(self, rank: int) -> None:
        code = self.processes[rank].wait()
        at_s = time.perf_counter()
        _end_group(self.pids[rank])
        self.put(rank, "ended", code, at_s)

    def kill(self) -> None:
        import psutil

        nested = []
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(psutil.Error):
                    nested += psutil.Process(process.pid).children(recursive=True)
                process.kill()
        for one in nested:
            with contextlib.suppress(psutil.Error):
                one.kill()


def _end_group(pid: int) -> None:
    """End what a rank left behind in its process group: ask, then force; nothing where there are no groups."""
    if os.name != "posix":
        return
    deadline = time.monotonic() + 0.5
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            os.killpg(pid, 0)
            time.sleep(0.01)
        os.killpg(pid, signal.SIGKILL)
