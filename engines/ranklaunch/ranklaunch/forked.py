"""Fork server: a process that has imported torch and only forks ranks.

Linux only. This server imports torch, runs no operator, starts no thread of its own and touches no GPU, so that forking
it is safe; the kernel, which may hold CUDA, is never forked. It ends when the connection to the kernel does, or when it
has another parent, and takes the ranks with it. Ranks die with the server, and what a rank started dies after the rank.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Generator, Sequence
from typing import Any

from ranklaunch import worker
from ranklaunch.processes import Processes, Put, check_interrupt, fresh, search_path
from ranklaunch.wire import Channel

_SUBREAPER, _DEATH_SIGNAL = 36, 1  # PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG of prctl(2)
_MAX_FDS = 250  # Linux passes at most 253 descriptors in one message (SCM_MAX_FD, unix(7))
_MAX_BYTES = 2**16  # of a request
_PATIENCE_S = 0.5  # what a rank left behind has this long to end after SIGTERM: trackers of shared memory clean up


class Forked(Processes):
    """Ranks forked by the server of this process. They are killed when the session with their parent is closed."""

    def __init__(self, nprocs: int, put: Put) -> None:
        ours, self.theirs = socket.socketpair()
        self.session = Channel(ours)
        super().__init__(nprocs, put)

    def start(self, theirs: list[list[Any]]) -> None:
        with self.theirs as session:
            _send([session.fileno(), *(end.fileno() for ends in theirs for end in ends)])
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
        self.told = 0  # of the modules that `preload` named, how many this server was told
        self.main, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # requests stay apart
        with theirs:
            self.process = fresh(
                f"forked; forked.serve({theirs.fileno()})", pass_fds=[theirs.fileno()], start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        try:
            while not select.select([self.main], [], [], 0.1)[0]:
                check_interrupt()
            if self.main.recv(5) != b"ready":
                words = self.process.communicate()[1].decode(errors="replace").strip()
                raise RuntimeError(f"the process that starts the ranks could not start:\n{words}")
        except BaseException:
            self.process.kill()
            self.stop()
            raise
        atexit.register(self.stop)

    def preload(self) -> None:
        """Send the server the modules that `preload` named since it was last told."""
        if names := _named[self.told :]:
            self.main.sendall(pickle.dumps((search_path(), names)))
            self.told += len(names)

    def start(self, descriptors: Sequence[int]) -> None:
        """Request ranks from the server, after all imports."""
        self.preload()
        socket.send_fds(self.main, [b"start"], descriptors)

    def stop(self) -> None:
        """Tell the server to end, and wait for it; a forked copy of this process leaves it alone."""
        atexit.unregister(self.stop)
        if self.pid == os.getpid():
            self.main.close()
            if self.process.stderr is not None:
                self.process.stderr.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=3.0)


_lock = threading.Lock()
_running: list[_Server] = []
_named: list[str] = []  # modules that the server imports before it forks


@contextlib.contextmanager
def _locked() -> Generator[None]:
    """Hold the server lock, dropping a server that died or belongs to a parent process."""
    while not _lock.acquire(timeout=0.1):  # another thread starts the server
        check_interrupt()
    try:
        if _running and (_running[0].pid != os.getpid() or _running[0].process.poll() is not None):
            _running.pop().stop()
        yield
    finally:
        _lock.release()


def _send(descriptors: Sequence[int]) -> None:
    """Send the server a request to fork ranks; start a server where there is none."""
    with _locked():
        if not _running:
            _running.append(_Server())
        try:
            _running[0].start(descriptors)
        except OSError:  # it died just now
            _running.pop().stop()
            _running.append(_Server())
            _running[0].start(descriptors)


def preload(*modules: str) -> None:
    """Register modules for servers to import: a running server imports them now, a later one before its first fork."""
    with _locked():
        _named.extend(name for name in modules if name not in _named)
        with contextlib.suppress(OSError):  # it died just now
            for server in _running:
                server.preload()


def serve(number: int) -> None:
    """Serve the kernel on the socket with this descriptor until it is gone."""
    _Forking(socket.socket(fileno=number)).loop()


class _Forking:
    def __init__(self, main: socket.socket) -> None:
        self.main, self.kernel = main, os.getppid()
        self.ranks: dict[int, tuple[socket.socket, int]] = {}  # process id: session, the connection to a launch; rank
        self.over: list[tuple[socket.socket, int, int, float]] = []  # session, rank, exit code, when: not yet told of
        self.asked: dict[int, float] = {}  # process id of what a rank left behind: when it was asked to end
        self.wake, self.woken = socket.socketpair()
        self.wake.setblocking(False)
        self.woken.setblocking(False)
        _prctl(_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self.woken.fileno(), warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()

    def loop(self) -> None:
        """Serve until the kernel is gone, then kill every rank and every process that ranks started, and end."""
        self.main.sendall(b"ready")
        while os.getppid() == self.kernel:
            sessions = {session for session, _ in self.ranks.values()}
            ready, _, _ = select.select([self.main, self.wake, *sessions], [], [], 0.01 if self.over else 2.0)
            if self.main in ready and not self.request():
                break
            if self.wake in ready:
                self.wake.recv(4096)
            if gone := sessions.intersection(ready):
                self.kill({pid for pid, (session, _) in self.ranks.items() if session in gone})
            self.reap()
            if self.over and not self.end_leftovers():
                for session, rank, code, at_s in self.over:
                    _tell(session, rank, "ended", (code, at_s))
                self.over.clear()  # a session without ranks is thereby closed
        deadline = time.monotonic() + 2.0
        while (children := _children() | self.ranks.keys()) and time.monotonic() < deadline:
            self.kill(children)
            self.reap()
        os._exit(0)

    def request(self) -> bool:
        """Read a request of the kernel: fork ranks, or import modules that ranks need. False when it is gone."""
        data, descriptors, *_ = socket.recv_fds(self.main, _MAX_BYTES, _MAX_FDS)
        if data and not descriptors:
            _import(*pickle.loads(data))
        elif data:
            session = socket.socket(fileno=descriptors.pop(0))
            for rank in range(len(descriptors) // 3):
                with warnings.catch_warnings():  # of Python 3.12: a thread of NumPy's BLAS exists, which knows forks
                    warnings.simplefilter("ignore")
                    pid = os.fork()
                if pid == 0:
                    self.become_rank(session, descriptors, 3 * rank)
                self.ranks[pid] = session, rank
                _tell(session, rank, "pid", pid)
            for descriptor in descriptors:
                os.close(descriptor)
        return bool(data)

    def become_rank(self, session: socket.socket, descriptors: list[int], first: int) -> None:
        """In the child: keep the three descriptors of this rank, drop all else, and never return."""
        try:
            os.setsid()
            _prctl(_DEATH_SIGNAL, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(descriptors[first + 1], 1)
            os.dup2(descriptors[first + 2], 2)
            others = (one[0] for one in [*self.ranks.values(), *self.over])
            for connection in (self.main, self.wake, self.woken, session, *others):
                connection.close()
            control = socket.socket(fileno=descriptors.pop(first))
            for descriptor in descriptors:
                os.close(descriptor)
            worker.run(control)
        finally:
            os._exit(1)

    def kill(self, pids: set[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)

    def reap(self) -> None:
        """Collect processes that ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self.ranks:
                    with contextlib.suppress(OSError):  # its group, should Linux not list children
                        os.killpg(pid, signal.SIGTERM)
                    self.over.append((*self.ranks.pop(pid), os.waitstatus_to_exitcode(status), time.perf_counter()))

    def end_leftovers(self) -> bool:
        """Ask processes whose rank is gone to end, then force them; return whether they need more time."""
        left, now = _children() - self.ranks.keys(), time.monotonic()
        self.asked = {pid: self.asked.get(pid, now) for pid in left}
        for pid, since in self.asked.items():
            if since == now or now - since > _PATIENCE_S:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if since == now else signal.SIGKILL)
        return any(now - since < 4 * _PATIENCE_S for since in self.asked.values())


def _import(path: list[str], names: list[str]) -> None:
    """Import modules as the kernel finds them; a rank that needs one that cannot be imported says why."""
    sys.path[:] = path
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _tell(session: socket.socket, *message: object) -> None:
    with contextlib.suppress(OSError):
        session.sendall(pickle.dumps(message))


def _children() -> set[int]:
    """Return the process ids of this process's children, orphans of ranks included; empty where Linux does not say."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
