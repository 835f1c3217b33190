"""How does a rank start at once: from a process that has imported torch already, and does nothing but fork?

Linux only. The server imports torch, runs no operator, starts no thread of its own and touches no GPU, so that forking
it is safe; the kernel, which may hold CUDA, is never forked. It ends when the connection to the kernel does, or when it
has another parent, and takes the ranks with it. Ranks die with the server, and what a rank started dies after the rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import time
import warnings
from dataclasses import dataclass, field

from course_utils.launch import wire

__all__ = ["serve"]

_SUBREAPER, _DEATH_SIGNAL = 36, 1  # PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG of prctl(2)
_MAX_FDS = 250  # Linux passes at most 253 descriptors in one message (SCM_MAX_FD, unix(7))
_PATIENCE_S = 0.5  # what a rank left behind has this long to end after SIGTERM: trackers of shared memory clean up


@dataclass
class _Session:
    """One launch: the connection to it and its ranks that are not yet reported as ended."""

    channel: wire.Channel
    ranks: dict[int, int]  # process id: rank
    ended: dict[int, tuple[int, float]] = field(default_factory=dict)  # process id: status, when


def serve(number: int) -> None:
    """Serve the kernel on the socket with this descriptor until it is gone."""
    from course_utils.launch import worker  # noqa: F401  (torch, once for all ranks)

    _prctl(_SUBREAPER, 1)
    _Server(socket.socket(fileno=number)).loop()


class _Server:
    def __init__(self, main: socket.socket) -> None:
        self.main, self.parent = main, os.getppid()
        self.sessions: list[_Session] = []
        self.leftovers: dict[int, float] = {}  # orphans of ranks: process id, when SIGTERM was sent
        self.selector = selectors.DefaultSelector()
        self.wake, self.woken = socket.socketpair()
        for end in (self.wake, self.woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self.woken.fileno(), warn_on_full_buffer=False)
        self.selector.register(main, selectors.EVENT_READ, None)
        self.selector.register(self.wake, selectors.EVENT_READ, None)
        gc.collect()
        gc.freeze()

    def loop(self) -> None:
        self.main.sendall(b"ready")
        while os.getppid() == self.parent:
            for key, _ in self.selector.select(0.01 if self.pending() else 2.0):
                if key.fileobj is self.main:
                    if not self.request():
                        return self.end()
                elif key.fileobj is self.wake:
                    self.wake.recv(4096)
                elif key.data in self.sessions:
                    self.heard(key.data)
            self.reap()
        self.end()

    def pending(self) -> bool:
        return bool(self.leftovers) or any(session.ended for session in self.sessions)

    def request(self) -> bool:
        """Read a request of the kernel: fork ranks, or import a module that ranks needed. False when it is gone."""
        data, descriptors, *_ = socket.recv_fds(self.main, 256, _MAX_FDS)
        if not data:
            return False
        if not descriptors:
            for name in data.decode().split():
                importlib.import_module(name)
            return True
        session, *rest = descriptors
        started = _Session(wire.Channel(socket.socket(fileno=session)), {})
        self.sessions.append(started)
        for rank in range(len(rest) // 3):
            with warnings.catch_warnings():  # of Python 3.12: a thread of NumPy's BLAS exists, which knows forks
                warnings.simplefilter("ignore")
                pid = os.fork()
            if pid == 0:
                self.become_rank(rest, rank)
            started.ranks[pid] = rank
        for one in rest:
            os.close(one)
        self.selector.register(started.channel.connection, selectors.EVENT_READ, started)
        self.tell(started, "pids", list(started.ranks))
        return True

    def become_rank(self, descriptors: list[int], rank: int) -> None:
        """In the child: keep the three descriptors of this rank, drop all else, and never return."""
        try:
            os.setsid()
            _prctl(_DEATH_SIGNAL, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            control, out, err = descriptors[3 * rank : 3 * rank + 3]
            os.dup2(out, 1)
            os.dup2(err, 2)
            for one in descriptors:
                if one != control:
                    os.close(one)
            self.selector.close()
            for one in (self.main, self.wake, self.woken, *(s.channel.connection for s in self.sessions)):
                one.close()
            from course_utils.launch import worker

            worker.run(socket.socket(fileno=control))
        finally:
            os._exit(1)

    def heard(self, session: _Session) -> None:
        """A launch wants its ranks killed, or is gone."""
        try:
            session.channel.receive()
            gone = False
        except (EOFError, OSError):
            gone = True
        for pid in session.ranks:
            if pid not in session.ended:
                os.kill(pid, signal.SIGKILL)
        if gone:
            self.selector.unregister(session.channel.connection)
            session.channel.close()
            if not session.ranks:
                self.sessions.remove(session)

    def reap(self) -> None:
        """Collect processes that ended, end what they left behind, and report ranks that are gone with all theirs."""
        now = time.monotonic()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.leftovers.pop(pid, None)
            for session in self.sessions:
                if pid in session.ranks:
                    with contextlib.suppress(OSError):  # its group, should Linux not list children
                        os.killpg(pid, signal.SIGTERM)
                    session.ended[pid] = (status, time.perf_counter())
        if self.pending():
            self.end_leftovers(now)
        for session in list(self.sessions):
            if not self.leftovers:
                for pid, (status, at_s) in session.ended.items():
                    self.tell(session, "ended", session.ranks.pop(pid), os.waitstatus_to_exitcode(status), at_s)
                session.ended.clear()
            if not session.ranks and session.channel.connection.fileno() < 0:
                self.sessions.remove(session)

    def end_leftovers(self, now: float) -> None:
        """Ask processes whose rank is gone to end, then force them."""
        known = {pid for session in self.sessions for pid in session.ranks}
        children = _children()
        for pid in children - known:
            since = self.leftovers.setdefault(pid, now)
            if since == now or now - since > _PATIENCE_S:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if since == now else signal.SIGKILL)
        for pid, since in list(self.leftovers.items()):
            if pid not in children or now - since > 4 * _PATIENCE_S:
                del self.leftovers[pid]

    def tell(self, session: _Session, *message: object) -> None:
        with contextlib.suppress(OSError):
            session.channel.send(*message)

    def end(self) -> None:
        """Kill every rank and every process that ranks started, then leave."""
        deadline = time.monotonic() + 2.0
        while (
            children := _children() | {pid for s in self.sessions for pid in s.ranks}
        ) and time.monotonic() < deadline:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
            self.reap()
        os._exit(0)


def _children() -> set[int]:
    """Return the process ids of this process's children, orphans of ranks included; empty where Linux does not say."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
