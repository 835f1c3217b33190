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
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from course_utils import _launch_report as report
from course_utils import _launch_start
from course_utils._launch_output import Output
from course_utils._launch_rank import Job
from course_utils._launch_report import RankError
from course_utils._launch_wire import Failure, Frame

__all__ = ["Run"]

START_S = 120.0  # for the ranks to be there: fresh interpreters import torch on a machine that may be busy
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
        self.ready: set[int] = set()
        self.returned: dict[int, bytes] = {}
        self.failed: dict[int, Failure] = {}
        self.unsendable: dict[int, tuple[str, Failure]] = {}
        self.ended: dict[int, tuple[int | None, float]] = {}
        self.stacks: dict[int, tuple[Frame, ...]] = {}
        self.silent: set[tuple[int, str]] = set()
        self.dumps: dict[int, bytes] = {}  # of ranks that cannot answer: what faulthandler writes
        self.compiler = False  # a rank had to import torch's compiler, which takes a second

    def results(self) -> list[bytes]:
        """Return what each rank returned, pickled. Raises RankError; in any case no rank is left."""
        store = processes = None
        try:
            store = _store()
            processes = _launch_start.start(len(self.all), lambda *event: self.events.put(event))
            job = self._job(store.port)
            for rank, channel in enumerate(processes.channels):
                with contextlib.suppress(OSError):  # it has died, and that will be heard
                    channel.send(rank, job)
            self._wait(processes)
            for channel in processes.channels:
                with contextlib.suppress(OSError):
                    channel.send("leave")
            self._pump(lambda: len(self.ended) == len(self.all), _END_S)
            return [self.returned[rank] for rank in self.all]
        finally:
            del store
            if processes is not None:
                self._stop(processes)

    def _job(self, port: int) -> Job:
        threads = max(1, _cores() // len(self.all))
        path = tuple(os.path.abspath(entry) for entry in sys.path)
        return Job(
            len(self.all), self.devices, self.backend, port, dict(os.environ), path, os.getcwd(), threads, self.payload
        )

    def _wait(self, processes: _launch_start.Processes) -> None:
        """Return when all ranks have returned; raise RankError when that cannot be."""
        if not self._pump(lambda: self._trouble() or len(self.ready) == len(self.all), START_S):
            late = sorted(set(self.all) - self.ready)
            raise RankError(f"rank {late[0]} was not ready after {START_S:.0f} s; all were stopped.", late[0], "start")
        done = self._pump(lambda: self._trouble() or len(self.returned) == len(self.all), self.timeout_s)
        if self._trouble():
            self._pump(lambda: len(self.failed) + len(self.unsendable) + len(self.ended) >= len(self.all), _GRACE_S)
            raise self._first()
        if not done:
            self._ask(processes)
            raise self._hang()

    def _trouble(self) -> bool:
        return bool(self.failed or self.unsendable or self.ended.keys() - self.returned.keys())

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
            self.returned[rank], compiler = values
            self.compiler |= compiler
        elif kind == "failed":
            self.failed[rank] = values[0]
        elif kind == "unsendable":
            self.unsendable[rank] = values
        elif kind == "stack":
            self.stacks[rank] = values[0]
        elif kind == "ended":
            self.ended[rank] = values

    def _first(self) -> RankError:
        """Return the error of the rank that failed first; those that lost their partner failed after it."""
        told = self.failed.keys() | self.unsendable.keys() | self.returned.keys()
        dead = {rank: value for rank, value in self.ended.items() if rank not in told}
        times = {rank: (_lost_partner(f), f.at_s) for rank, f in self.failed.items()}
        times |= {rank: (False, f.at_s) for rank, (_, f) in self.unsendable.items()}
        times |= {rank: (False, at_s) for rank, (_, at_s) in dead.items()}
        rank = min(times, key=lambda rank: times[rank])
        states = {one: self._state(one) for one in self.all}
        others = [f"After it, rank {one} {states[one]}." for one in sorted(times) if one != rank]
        if rank in self.failed:
            failure = self.failed[rank]
            lines = [f"rank {rank} raised {failure.kind}; all ranks were stopped.", report.raised(failure)]
            return RankError("\n".join([*lines, *others]), rank, "raised", failure.kind, states)
        if rank in self.unsendable:
            lines = [f"rank {rank} {states[rank]}.", "Return tensors, numbers, text, or containers of these."]
            return RankError("\n".join([*lines, *others]), rank, "result", self.unsendable[rank][1].kind, states)
        lines = [f"rank {rank} {states[rank]}; all ranks were stopped."]
        return RankError("\n".join([*lines, *others]), rank, "died", "", states)

    def _state(self, rank: int) -> str:
        """Return in words what a rank did last."""
        if rank in self.unsendable:
            name, failure = self.unsendable[rank]
            return f"returned a {name}, which cannot be sent to this process: {failure.words}"
        if rank in self.failed:
            words = self.failed[rank].words.partition("\n")[0]
            return f"raised {words[:200]}"
        if rank in self.returned:
            return "had returned"
        if rank in self.ended:
            return report.died(self.ended[rank][0])
        return report.waiting(self.stacks[rank]) if rank in self.stacks else "was running"

    def _ask(self, processes: _launch_start.Processes) -> None:
        """Ask every rank that has not returned where it is; one that cannot answer is asked by a signal."""
        asked = [rank for rank in self.all if rank not in self.returned]
        for rank in asked:
            with contextlib.suppress(OSError):
                processes.channels[rank].send("stack")
        if self._pump(lambda: all(rank in self.stacks for rank in asked), _ANSWER_S) or os.name != "posix":
            return
        silent = [rank for rank in asked if rank not in self.stacks]
        for rank in silent:  # it holds Python's lock in compiled code, or is stopped
            self.dumps[rank] = b""
            with contextlib.suppress(ProcessLookupError):
                os.kill(processes.pids[rank], signal.SIGUSR1)
        self._pump(lambda: False, 0.3)
        for rank in silent:
            found = re.findall(r'File "(.*)", line (\d+) in (.*)', self.dumps[rank].decode(errors="replace"))
            if found:
                self.stacks[rank] = tuple(Frame(file, int(line), name) for file, line, name in reversed(found))

    def _hang(self) -> RankError:
        waiting = [rank for rank in self.all if rank not in self.returned]
        states = {rank: self._state(rank) for rank in self.all}
        states |= {rank: "gave no answer" for rank in waiting if rank not in self.stacks}
        busy = [rank for rank in waiting if not report.communicates(self.stacks.get(rank, ()))]
        head = f"{len(waiting)} of {len(self.all)} ranks had not returned after {self.timeout_s:g} s; all were stopped."
        lines = [f"rank {rank}: {states[rank]}" for rank in self.all]
        return RankError("\n".join([head, *lines]), (busy or waiting)[0], "hang", "", states)

    def _stop(self, processes: _launch_start.Processes) -> None:
        """End everything, whatever happened before, and print what the ranks still wrote."""
        try:
            if len(self.ended) < len(self.all):
                processes.kill()
                self._pump(lambda: len(self.ended) == len(self.all), _END_S)
            self._pump(lambda: len(self.silent) == 2 * len(self.all), 0.5)
        finally:
            processes.close()
            self.output.finish()
        if self.compiler:
            _launch_start.preload("torch._dynamo")


def _store() -> dist.TCPStore:
    """Return the store where the ranks meet, on a port of the loopback interface that the system has chosen."""
    wait = {"is_master": True, "wait_for_workers": False, "timeout": datetime.timedelta(seconds=60)}
    if os.name == "nt":
        return dist.TCPStore("127.0.0.1", 0, **wait)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    port = listener.getsockname()[1]
    return dist.TCPStore("127.0.0.1", port, master_listen_fd=listener.detach(), **wait)


def _lost_partner(failure: Failure) -> bool:
    """Return whether this failure says that another rank is gone."""
    pattern = r"onnection (closed|reset|refused|was)|Broken pipe|Socket (Closed|closed)|remote process exited"
    return bool(re.search(pattern, failure.words)) and report.communicates(failure.frames)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
