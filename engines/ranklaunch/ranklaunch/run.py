"""How does one launch go from its start to its end, whatever the ranks do?

On Linux a server process that has imported torch forks the ranks (`forked`), within milliseconds. Elsewhere each is
a fresh interpreter (`processes`): macOS has libraries that do not survive a fork, and Windows has no fork. Why
not `multiprocessing`: its one fork server serves everybody in the process, and its children import the parent's
`__main__` again.
"""

import contextlib
import datetime
import os
import queue
import re
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from traceback import FrameSummary
from typing import Any

import torch.distributed as dist

from ranklaunch import report
from ranklaunch.forked import Forked, preload
from ranklaunch.output import Output
from ranklaunch.processes import Processes, Spawned, check_interrupt, folder, interrupts_held, search_path
from ranklaunch.report import RankError
from ranklaunch.worker import Job

_START_S = 120.0  # for the ranks to be there: fresh interpreters import torch on a machine that may be busy
_GRACE_S = 0.2  # after the first failure: what else failed, and what came first?
_ANSWER_S = 1.0  # for a rank to say where it is
_END_S = 5.0  # for processes to end


class Run:
    """One launch; `results` does all of it."""

    def __init__(self, devices: tuple[str, ...], backend: str, start: bytes, payload: bytes, timeout_s: float) -> None:
        self.devices, self.backend, self.start, self.payload = devices, backend, start, payload
        self.timeout_s, self.all = timeout_s, range(len(devices))
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.output = Output(len(devices))
        self.seen = report.Seen(len(devices))
        self.open = 2 * len(devices)  # streams that ranks may still write to
        self.stopping = False
        self.dumps: dict[int, bytes] = {}  # of ranks that cannot answer: what faulthandler writes

    def results(self) -> list[bytes]:
        """Return what each rank returned, pickled. Raises RankError; in any case no rank is left."""
        way = _way()
        with interrupts_held():
            store, processes = _store(), None
            try:
                processes = way(len(self.all), lambda *event: self.events.put(event))
                job = self._job(store.port)
                for rank, channel in enumerate(processes.channels):
                    with contextlib.suppress(OSError):  # it has died, and that will be heard
                        channel.send(rank, job)
                self._wait(processes)
                _tell(processes, "leave")
                self._pump(lambda: len(self.seen.ended) == len(self.all), _END_S)
            finally:
                del store
                if processes is not None:
                    self._stop(processes)
            for module in {name for _, names in self.seen.returned.values() for name in names} if way is Forked else ():
                preload(module)  # while nobody waits: it takes each rank a second
        return [self.seen.returned[rank][0] for rank in self.all]

    def _job(self, port: int) -> Job:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        filters = [one for one in warnings.filters if one[2].__module__ in ("builtins", "torch")]
        return Job(
            self.devices, self.backend, port, dict(os.environ), search_path(), list(sys.argv), folder(),
            max(1, cores // len(self.all)), filters, self.start, self.payload,
        )  # fmt: skip

    def _wait(self, processes: Processes) -> None:
        """Return when all ranks have returned; raise RankError when that cannot be."""
        if not self._pump(lambda: self._trouble() or len(self.seen.ready) == len(self.all), _START_S):
            late = sorted(set(self.all) - self.seen.ready.keys())
            raise RankError(f"rank {late[0]} was not ready after {_START_S:.0f} s; all were stopped.", late[0], "start")
        if not self._trouble():
            _tell(processes, "go")
        done = self._pump(lambda: self._trouble() or len(self.seen.returned) == len(self.all), self.timeout_s)
        if self._trouble():
            self._pump(lambda: len(self.seen.over()) == len(self.all), _GRACE_S)
            raise report.first_failure(self.seen)
        if not done:
            late = set(self.all) - self.seen.returned.keys()
            self._ask(processes, late)
            if self.dumps or late - self.seen.returned.keys():  # else they have returned just now
                raise report.hang(self.seen, sorted(late), self.timeout_s)

    def _trouble(self) -> bool:
        return bool(self.seen.over() - self.seen.returned.keys() or self.seen.garbled)

    def _pump(self, until: Callable[[], Any], limit_s: float) -> bool:
        """Handle what the ranks say until `until()` is true; False when that took longer than the limit."""
        deadline = time.monotonic() + limit_s
        while not until():
            if not self.stopping:
                check_interrupt()
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(queue.Empty):
                self._handle(*self.events.get(timeout=min(left, 0.1)))
            self.output.tick()
        return True

    def _handle(self, rank: int, kind: str, value: Any) -> None:
        if kind not in ("out", "err"):
            getattr(self.seen, kind)[rank] = value
        elif not value:
            self.open -= 1
        elif kind == "err" and rank in self.dumps:
            self.dumps[rank] += value
        else:
            self.output.take(rank, kind, value)

    def _ask(self, processes: Processes, asked: set[int]) -> None:
        """Ask ranks where they are; one that cannot answer is asked by a signal."""
        _tell(processes, "stack")
        answered = self._pump(lambda: self.seen.stack.keys() | self.seen.returned.keys() >= asked, _ANSWER_S)
        if answered or os.name != "posix":
            return
        for rank in asked - self.seen.stack.keys():  # it holds Python's lock in compiled code, or is stopped
            self.dumps[rank] = b""
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.seen.pid[rank], signal.SIGUSR1)
        self._pump(lambda: False, 0.3)
        for rank, dump in self.dumps.items():
            found = re.findall(r'File "(.*)", line (\d+) in (.*)', dump.decode(errors="replace"))
            if found:
                self.seen.stack[rank] = [FrameSummary(file, int(line), name) for file, line, name in reversed(found)]

    def _stop(self, processes: Processes) -> None:
        """End everything, whatever happened before, and print what the ranks still wrote."""
        self.stopping = True
        try:
            if len(self.seen.ended) < len(self.all):
                processes.kill()
                patience_s = _END_S if self.seen.pid else 0.5  # a busy server may not have started them, and will not
                self._pump(lambda: len(self.seen.ended) == len(self.all), patience_s)
            if self.seen.pid:
                self._pump(lambda: not self.open, 0.5)
        finally:
            processes.close()
            self.output.finish()


def _way() -> type[Processes]:
    """Return how ranks are started here; COURSE_LAUNCH=spawn is the way out where a forked rank does not work."""
    method = os.environ.get("COURSE_LAUNCH") or ("forkserver" if sys.platform == "linux" else "spawn")
    if method not in ("forkserver", "spawn"):
        raise ValueError(f"COURSE_LAUNCH is {method!r}, it may be 'forkserver' or 'spawn'")
    return Forked if method == "forkserver" else Spawned


def _tell(processes: Processes, request: str) -> None:
    for channel in processes.channels:
        with contextlib.suppress(OSError):
            channel.send(request)


def _store() -> dist.TCPStore:
    """Return the store where the ranks meet, on a port of the loopback interface that the system has chosen."""
    wait = {"is_master": True, "wait_for_workers": False, "timeout": datetime.timedelta(seconds=60)}
    if os.name == "nt":  # PyTorch's Windows wheels are built without libuv, its default
        return dist.TCPStore("127.0.0.1", 0, use_libuv=False, **wait)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    port = listener.getsockname()[1]
    return dist.TCPStore("127.0.0.1", port, master_listen_fd=listener.detach(), **wait)
