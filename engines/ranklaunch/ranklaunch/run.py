"""Course of one launch from start to end, whatever the ranks do.

On Linux a server process that has imported torch forks the ranks (`forked`), within milliseconds. Elsewhere each is
a fresh interpreter (`processes`): macOS has libraries that do not survive a fork, and Windows has no fork. Why
not `multiprocessing`: its one fork server serves everybody in the process, and its children import the parent's
`__main__` again.
"""

import contextlib
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
from typing import Any, cast

import torch.distributed as dist

from ranklaunch import report
from ranklaunch.forked import Forked, preload
from ranklaunch.output import Output
from ranklaunch.pace import Pace, cores, work
from ranklaunch.processes import Processes, Spawned, check_interrupt, folder, interrupts_held, search_path
from ranklaunch.report import RankError
from ranklaunch.wire import MEET, Look
from ranklaunch.worker import SLOW, Job

_START_S = 120.0  # for the ranks to be there: fresh interpreters import torch
_GRACE_S = 0.2  # after the first failure: what else failed, and what came first?
_CAUSE_S = 2.0  # for the rank that failed first, where others say only that they lost it
_ANSWER_S = 1.0  # for a rank to say where it is
_WAIT_S = 0.1  # for the next event, before the limit is looked at
_SUSPENDED_S = 1.0  # if a wait overshoots by this much, the machine itself was suspended
_APART_S = 0.3  # between two looks at ranks that are late
_LOOKS = 4  # after the first, at most
_SIGNAL_S = 1.0  # for a rank to write where it is, when a signal asks it
_END_S = 5.0  # for processes to end
_ESCAPED = re.compile(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U00[01][0-9a-f]{5}")
_CRASH = re.compile(rb"(Fatal Python error|Windows fatal exception): ")  # faulthandler begins so


class LaunchRun:
    """One launch; `results` does all of it."""

    def __init__(self, devices: tuple[str, ...], backend: str, start: bytes, payload: bytes, timeout_s: float) -> None:
        self.devices, self.backend, self.start, self.payload = devices, backend, start, payload
        self.timeout_s, self.all = timeout_s, range(len(devices))
        self.events: queue.SimpleQueue[tuple[int, str, Any]] = queue.SimpleQueue()
        self.output = Output(len(devices))
        self.seen = report.Seen(len(devices))
        self.closed: set[tuple[int, str]] = set()  # streams that ranks no longer write to
        self.stopping = False
        self.asked: dict[int, bytes] = {}  # what faulthandler writes, of ranks that can answer to nothing but a signal
        self.crashed: dict[int, bytes] = {}  # the same, of ranks that die; others may have started what died

    def results(self) -> list[bytes]:
        """Return what each rank returned, pickled. Raises RankError; in any case no rank is left."""
        way = _way()
        if way is Forked:  # the ranks probably need it too: then the server imports it, once for all
            preload(*(name for name in SLOW if name in sys.modules))
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
            if way is Forked:  # while nobody waits: it takes each rank a second
                preload(*sorted({name for _, names in self.seen.returned.values() for name in names}))
        return [self.seen.returned[rank][0] for rank in self.all]

    def _job(self, port: int) -> Job:
        filters = [one for one in warnings.filters if one[2].__module__ in ("builtins", "torch")]
        return Job(
            self.devices, self.backend, port, dict(os.environ), search_path(), list(sys.argv), folder(),
            max(1, cores() // len(self.all)), filters, self.start, self.payload,
        )  # fmt: skip

    def _wait(self, processes: Processes) -> None:
        """Return when all ranks have returned; raise RankError when that cannot be."""
        start = Pace(_START_S, self.seen.pid, lambda: set(self.all) - self.seen.ready.keys())
        if not self._pump(lambda: self._trouble() or len(self.seen.ready) == len(self.all), start):
            raise report.not_ready(self.seen, _START_S, start.busy())
        if not self._trouble():
            _tell(processes, "go")
        pace = Pace(self.timeout_s, self.seen.pid, self._late)
        if not self._pump(lambda: self._trouble() or not self._late(), pace):
            self._judge(processes, pace)
        if self._trouble():
            raise self._first_failure()

    def _late(self) -> set[int]:
        """Return the ranks that are not known to have ended."""
        return set(self.all) - self.seen.over()

    def _trouble(self) -> bool:
        return bool(self.seen.over() - self.seen.returned.keys() or self.seen.garbled)

    def _judge(self, processes: Processes, pace: Pace) -> None:
        """Raise RankError for ranks that are late, unless they end now; a second look tells who got on meanwhile.

        A rank that wants a core and got none, as on a machine that stood still, is looked at again.
        """
        before, at_s = self._look(processes), time.monotonic()
        now, at_work = before, list[int]()
        for _ in range(_LOOKS):
            self._pump(lambda: self._trouble() or not self._late(), Pace(_APART_S, self.seen.pid, self._late))
            now, seconds = self._look(processes), time.monotonic() - at_s
            at_work = [rank for rank in now if rank in before and now[rank].moved(before[rank], seconds)]
            if at_work or not any(look.runnable for look in now.values()):
                break
        now |= self._look_by_signal({rank for rank in now if not now[rank].frames})  # which may end a call
        late = sorted(self._late() | self.asked.keys())
        if late and not self._trouble():
            said, looks = pace.busy() if at_work else "", {rank: now[rank] for rank in late}
            raise report.late(self.seen, looks, at_work, self.timeout_s, said, said if pace.cut_short() else "")

    def _first_failure(self) -> RankError:
        """Return the error of the rank that failed first, when it is known what became of the others."""
        self._pump(lambda: not self._late(), _GRACE_S)
        cause = Pace(_CAUSE_S, self.seen.pid, self._late)
        self._pump(lambda: not self._late() or report.cause_known(self.seen), cause)
        died = self.seen.ended.keys() - self.seen.returned.keys()
        self._pump(lambda: all((rank, "err") in self.closed for rank in died), _END_S)
        for rank in died & self.crashed.keys():
            self.seen.crash[rank] = _main_stack(self.crashed.pop(rank))
        return report.first_failure(self.seen)

    def _pump(self, until: Callable[[], Any], limit: float | Pace) -> bool:
        """Handle what the ranks say until `until()` is true; False when that took longer than the limit, in seconds."""
        deadline = time.monotonic() + (limit.limit_s if isinstance(limit, Pace) else limit)
        while not until():
            if not self.stopping:
                check_interrupt()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                left_s = limit.left_s() if isinstance(limit, Pace) else 0.0
                if left_s <= 0:
                    return False
                deadline = time.monotonic() + max(left_s, 0.05)
            asked_s, wait_s = time.monotonic(), min(left_s, _WAIT_S)
            event = self._event(wait_s)
            late_s = time.monotonic() - asked_s - wait_s
            if late_s > _SUSPENDED_S:  # the machine stood still, as a virtual one may: nobody had this time
                deadline += late_s
                if isinstance(limit, Pace):
                    limit.begin_s += late_s
            if event:
                self._handle(*event)
            self.output.tick()
        return True

    def _event(self, wait_s: float) -> tuple[int, str, Any] | None:
        """Return what a rank says next, None where for so many seconds none said anything."""
        with contextlib.suppress(queue.Empty):
            return self.events.get(timeout=wait_s)
        return None

    def _handle(self, rank: int, kind: str, value: Any) -> None:
        if kind not in ("out", "err"):
            getattr(self.seen, kind)[rank] = value
        elif not value:
            self.closed.add((rank, kind))
        else:
            self.output.take(rank, kind, self._shown(rank, value) if kind == "err" else value)

    def _shown(self, rank: int, data: bytes) -> bytes:
        """Return stderr without faulthandler's lines, which are kept."""
        begin = None if rank in self.crashed or rank in self.asked else _CRASH.search(data)
        if begin:
            self.crashed[rank] = data[begin.start() :]
            return data[: begin.start()]
        for texts in (self.asked, self.crashed):
            if rank in texts:
                texts[rank] += data
                return b""
        return data

    def _look(self, processes: Processes) -> dict[int, Look]:
        """Return where the ranks are that are late, and what they have computed; one that is silent has no frames."""
        asked = self._late()
        self.seen.look.clear()
        _tell(processes, "look")
        missing = lambda: (self._late() & asked) - self.seen.look.keys()  # noqa: E731
        self._pump(lambda: not missing(), Pace(_ANSWER_S, self.seen.pid, missing))
        return {rank: self._measured(rank, self.seen.look.get(rank, Look([], None))) for rank in self._late() & asked}

    def _measured(self, rank: int, look: Look) -> Look:
        """Return a look with what the system says that the rank has computed: running children are in it."""
        used = None if self.devices[rank].startswith("cuda") else work(self.seen.pid[rank])
        return look if used is None else look._replace(cpu_s=used.cpu_s, runnable=used.runnable)

    def _look_by_signal(self, silent: set[int]) -> dict[int, Look]:
        """Return where ranks are that hold Python's lock in compiled code, or are stopped, of those that react."""
        if not silent or os.name != "posix":
            return {}
        for rank in silent:
            self.asked[rank] = b""
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.seen.pid[rank], signal.SIGUSR1)
        written = lambda: all(self.asked.values())  # noqa: E731
        self._pump(written, Pace(_SIGNAL_S, self.seen.pid, lambda: silent))
        self._pump(lambda: False, 0.05)  # it may write on
        return {rank: Look(_main_stack(text), None) for rank, text in self.asked.items()}

    def _stop(self, processes: Processes) -> None:
        """End everything, whatever happened before, and print what the ranks still wrote."""
        self.stopping = True
        try:
            if len(self.seen.ended) < len(self.all):
                processes.kill()
                patience_s = _END_S if self.seen.pid else 0.5  # a busy server may not have started them, and will not
                self._pump(lambda: len(self.seen.ended) == len(self.all), patience_s)
            if self.seen.pid:
                self._pump(lambda: len(self.closed) == 2 * len(self.all), 0.5)
        finally:
            processes.close()
            for rank, text in self.crashed.items():  # not the rank died, but what it started
                self.output.take(rank, "err", text)
            self.output.finish()


def _way() -> type[Processes]:
    """Return how ranks are started here; RANKLAUNCH_METHOD=spawn is the way out where a forked rank does not work."""
    method = os.environ.get("RANKLAUNCH_METHOD") or ("forkserver" if sys.platform == "linux" else "spawn")
    if method not in ("forkserver", "spawn"):
        raise ValueError(f"RANKLAUNCH_METHOD is {method!r}, it may be 'forkserver' or 'spawn'")
    return Forked if method == "forkserver" else Spawned


def _main_stack(dump: bytes) -> list[FrameSummary]:
    """Return the stack of the thread that runs the function, the outermost call first, from what faulthandler wrote."""
    threads = re.split(r"^(?:Current t|T)hread .*$", dump.decode(errors="replace"), flags=re.MULTILINE)
    stacks = [re.findall(r'File "(.*)", line (\d+) in (.*)', thread) for thread in threads]
    ours = lambda stack: any(file.endswith("worker.py") and name == "_outcome" for file, _, name in stack)  # noqa: E731
    stack = max(stacks, key=lambda stack: (ours(stack), len(stack)))  # of a deep one only the inner calls are written
    return [FrameSummary(_read(file), int(line), _letters(name)) for file, line, name in reversed(stack)]


def _letters(text: str) -> str:
    r"""Return what faulthandler wrote, which has ASCII alone, with the letters that it writes as \xe9 or \u0141."""
    return _ESCAPED.sub(lambda match: chr(int(match[0][2:], 16)), text)


def _read(file: str) -> str:
    """Return the path that faulthandler wrote; on Windows a path may have what looks like such a letter."""
    return file if os.path.exists(file) else _letters(file)


def _tell(processes: Processes, request: str) -> None:
    for channel in processes.channels:
        with contextlib.suppress(OSError):
            channel.send(request)


def _store() -> Any:
    """Return the `TCPStore` where the ranks meet, on a port of the loopback interface that the system has chosen."""
    make: Any = cast(Any, dist).TCPStore  # defined in C++, which stubs leave out
    wait = {"is_master": True, "wait_for_workers": False, "timeout": MEET}
    if os.name == "nt":  # PyTorch's Windows wheels are built without libuv, its default
        return make("127.0.0.1", 0, use_libuv=False, **wait)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    port = listener.getsockname()[1]
    return make("127.0.0.1", port, master_listen_fd=listener.detach(), **wait)
