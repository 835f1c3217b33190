"""How does one launch go from its start to its end, whatever the ranks do?"""

from __future__ import annotations

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
from typing import Any

import torch.distributed as dist

from course_utils.launch import report, start
from course_utils.launch.output import Output
from course_utils.launch.processes import START_S, Processes
from course_utils.launch.report import RankError
from course_utils.launch.wire import Frame
from course_utils.launch.worker import Job

__all__ = ["Run"]

_GRACE_S = 0.2  # after the first failure: what else failed, and what came first?
_ANSWER_S = 1.0  # for a rank to say where it is
_END_S = 5.0  # for processes to end


class Run:
    """One launch; `results` does all of it."""

    def __init__(self, devices: tuple[str, ...], backend: str, payload: bytes, timeout_s: float) -> None:
        self.devices, self.backend, self.payload, self.timeout_s = devices, backend, payload, timeout_s
        self.all = range(len(devices))
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.output = Output(len(devices))
        self.seen = report.Seen(len(devices))
        self.ready: set[int] = set()
        self.silent: set[tuple[int, str]] = set()
        self.dumps: dict[int, bytes] = {}  # of ranks that cannot answer: what faulthandler writes
        self.compiler = False  # a rank had to import torch's compiler, which takes a second

    def results(self) -> list[bytes]:
        """Return what each rank returned, pickled. Raises RankError; in any case no rank is left."""
        store = processes = None
        try:
            store = _store()
            processes = start.start(len(self.all), lambda *event: self.events.put(event))
            job = self._job(store.port)
            for rank, channel in enumerate(processes.channels):
                with contextlib.suppress(OSError):  # it has died, and that will be heard
                    channel.send(rank, job)
            self._wait(processes)
            _tell(processes, "leave")
            self._pump(lambda: len(self.seen.ended) == len(self.all), _END_S)
            return [self.seen.returned[rank] for rank in self.all]
        finally:
            del store
            if processes is not None:
                self._stop(processes)

    def _job(self, port: int) -> Job:
        threads = max(1, _cores() // len(self.all))
        path = tuple(os.path.abspath(entry) for entry in sys.path)
        filters = tuple(one for one in warnings.filters if one[2].__module__ in ("builtins", "torch"))
        return Job(
            len(self.all), self.devices, self.backend, port, dict(os.environ), path, tuple(sys.argv), _folder(),
            threads, filters, self.payload,
        )  # fmt: skip

    def _wait(self, processes: Processes) -> None:
        """Return when all ranks have returned; raise RankError when that cannot be."""
        if not self._pump(lambda: self._trouble() or len(self.ready) == len(self.all), START_S):
            late = sorted(set(self.all) - self.ready)
            raise RankError(f"rank {late[0]} was not ready after {START_S:.0f} s; all were stopped.", late[0], "start")
        if not self._trouble():
            _tell(processes, "go")
        done = self._pump(lambda: self._trouble() or len(self.seen.returned) == len(self.all), self.timeout_s)
        if self._trouble():
            self._pump(lambda: self.seen.over() == len(self.all), _GRACE_S)
            raise report.first_failure(self.seen)
        if not done:
            late = [rank for rank in self.all if rank not in self.seen.returned]
            self._ask(processes, late)
            if self.seen.stacks or len(self.seen.returned) < len(self.all):  # else they have returned just now
                raise report.hang(self.seen, late, self.timeout_s)

    def _trouble(self) -> bool:
        seen = self.seen
        return bool(seen.failed or seen.unsendable or seen.ended.keys() - seen.returned.keys())

    def _pump(self, until: Callable[[], Any], limit_s: float) -> bool:
        """Handle what the ranks say until `until()` is true; False when that took longer than the limit."""
        deadline = time.monotonic() + limit_s
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(queue.Empty):
                self._handle(*self.events.get(timeout=min(left, 0.1)))  # short: Windows cannot interrupt a long one
            self.output.tick()
        return True

    def _handle(self, rank: int, kind: str, *values: Any) -> None:
        if kind in ("out", "err"):
            if kind == "err" and rank in self.dumps:
                self.dumps[rank] += values[0]
            else:
                self.output.take(rank, kind, values[0])
        elif kind == "silent":
            self.silent.add((rank, values[0]))
        elif kind == "ready":
            self.ready.add(rank)
        elif kind == "returned":
            self.seen.returned[rank], compiler = values
            self.compiler |= compiler
        elif kind == "failed":
            self.seen.failed[rank] = values[0]
        elif kind == "unsendable":
            self.seen.unsendable[rank] = values
        elif kind == "stack":
            self.seen.stacks[rank] = values[0]
        elif kind == "ended":
            self.seen.ended[rank] = values

    def _ask(self, processes: Processes, asked: list[int]) -> None:
        """Ask ranks where they are; one that cannot answer is asked by a signal."""
        for rank in asked:
            with contextlib.suppress(OSError):
                processes.channels[rank].send("stack")
        if (
            self._pump(lambda: all(rank in self.seen.stacks or rank in self.seen.returned for rank in asked), _ANSWER_S)
            or os.name != "posix"
        ):
            return
        silent = [rank for rank in asked if rank not in self.seen.stacks]
        for rank in silent:  # it holds Python's lock in compiled code, or is stopped
            self.dumps[rank] = b""
            with contextlib.suppress(ProcessLookupError):
                os.kill(processes.pids[rank], signal.SIGUSR1)
        self._pump(lambda: False, 0.3)
        for rank in silent:
            found = re.findall(r'File "(.*)", line (\d+) in (.*)', self.dumps[rank].decode(errors="replace"))
            if found:
                self.seen.stacks[rank] = tuple(Frame(file, int(line), name) for file, line, name in reversed(found))

    def _stop(self, processes: Processes) -> None:
        """End everything, whatever happened before, and print what the ranks still wrote."""
        try:
            if len(self.seen.ended) < len(self.all):
                processes.kill()
                self._pump(lambda: len(self.seen.ended) == len(self.all) or not processes.pids, _END_S)
            if processes.pids:  # else none has started, and none will
                self._pump(lambda: len(self.silent) == 2 * len(self.all), 0.5)
        finally:
            processes.close()
            self.output.finish()
        if self.compiler:
            start.preload("torch._dynamo")


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


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been deleted
        return os.path.expanduser("~")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
