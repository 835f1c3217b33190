"""Time limit of a call, and the user's Ctrl-C told from one that the code fakes.

A limit is time that the code has had (`spent`): a right answer on a busy machine gets as much of it as on a quiet one.
Far behind stands a limit of the clock on the wall; what it ends had not had its time, and nothing is said of the code.

On the main thread of Linux and macOS the timer of the operating system (SIGALRM) ends the call; it also wakes a
sleeping one. On Windows and on other threads a watchdog thread raises the exception in the calling thread
(PyThreadState_SetAsyncExc), which a blocking call notices only when it returns. Code that catches everything in a
loop ends too: a swallowed interruption sets, when it is destroyed, a trace function that raises at the next line, and
so one `try` after the other is left; and the interruption comes again until the call ends. What no platform can end is
one call into compiled code that never returns to Python, such as `sum(itertools.count())`.

PyTorch and the engines keep stacks, of modes say, which an exception between two of their lines would leave broken. So
the first interruption waits, for a second at most, until a line that is not theirs runs.

Code that imports a module is not interrupted, since a module loaded by half would break what needs it later; the time
begins anew after it. The first use of PyTorch's compiler loads for seconds.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import course_utils
import simgpu
from gpu_course.checks.spent import Spent

REPEAT_S = 0.02
LOADING_S = 60.0  # an import that has had more is ended too
WALL_S, TIMES = 30.0, 20.0  # the last resort: so long on the wall, and so many times the limit
PATIENCE_S = 1.0  # for a line that is not PyTorch's or an engine's
LOOK_S, _LEAST_S = 1.0, 0.05  # between two looks at what the code has had, at most and at least

_ROOM = "gpu_course.checks.sandbox"  # below its frames the code runs that is limited
_KEEPING = tuple(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (torch, simgpu, course_utils))
_LIBRARY = f"{Path(contextlib.__file__).parent}{os.sep}", "<frozen "


@dataclass
class Limit:
    """State of one time limit: `over` when the call has ended, `fired` how often it was interrupted.

    `busy` says that the last resort ended it: after `wall_s` seconds it had had `had_s` of its time.
    """

    over: bool = False
    fired: int = 0
    busy: bool = False
    had_s: float = 0.0
    wall_s: float = 0.0


class TimeUp(BaseException):
    """Raised in the code that took too long; `time_limit` raises a subclass that knows its Limit."""

    limit: Limit

    def __init__(self) -> None:
        super().__init__()
        self.limit.fired += 1
        if self.limit.fired > 1:  # the one before was swallowed
            _arm_tracer(type(self), skip=self.limit.fired % 7)

    def __del__(self) -> None:
        if not self.limit.over:  # an `except` swallowed it and has ended: the next line raises again
            _arm_tracer(type(self), skip=0)


def _arm_tracer(kind: type[TimeUp], skip: int) -> None:
    """Raise again after `skip` more lines, in this thread: for some number there is no `except` around the line.

    Lines of PyTorch and of the engines do not count, nor those of `__del__`: it runs anywhere, Python drops what it
    raises, and the next interruption would come between two lines of PyTorch.
    """
    left = skip

    def tracer(frame: Any, event: str, argument: object) -> Any:
        nonlocal left
        if kind.limit.over:
            return None
        if event == "call" and (frame.f_code.co_name == "__del__" or _keeps(frame)):
            return None
        if event == "line" and not _keeps(frame):
            left -= 1
            if left < 0:
                kind.limit.fired += 1
                raise BaseException.__new__(kind)
        return tracer

    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None and frame.f_globals.get("__name__") != _ROOM:
        frame.f_trace = tracer
        frame = frame.f_back
    sys.settrace(tracer)


def _keeps(frame: FrameType | None) -> bool:
    """Return whether PyTorch or an engine runs in `frame`, or Python's own library for one of them."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_KEEPING):
            return True
        if not file.startswith(_LIBRARY) or "site-packages" in file:
            return False
        frame = frame.f_back
    return False


@dataclass
class _Loading:
    """Whether to wait with an interruption because the code imports, and whether it has done so since the last one."""

    spent: Spent
    seen: bool = False

    def now(self, frame: FrameType | None) -> bool:
        """Say whether the code that runs in `frame` is importing."""
        while frame is not None and frame.f_globals.get("__name__") != _ROOM:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                self.seen = self.spent.wall_s < LOADING_S or self.spent.look() < LOADING_S
                return self.seen
            frame = frame.f_back
        return False

    def ended(self) -> bool:
        """Say whether an import was waited for, once."""
        seen, self.seen = self.seen, False
        return seen


def last_resort_s(limit_s: float) -> float:
    """Return the wall time after which code is ended even if it has not used its `limit_s`."""
    return WALL_S + TIMES * limit_s


class _Clock:
    """When is the code to be interrupted?"""

    def __init__(self, limit: Limit, seconds: float) -> None:
        self.limit, self.seconds, self.first_s = limit, seconds, seconds / 10
        self.thread = threading.get_native_id()  # of the code
        self.spent = Spent()
        self.loading = _Loading(self.spent)
        self.patient_until_s = 0.0  # once it is due
        self.meant_s = self.first_s  # from one look to the next

    def wait_s(self, frame: FrameType | None) -> float:
        """Return after how long to look again at the code, which runs in `frame`; 0 where its time is over."""
        if self.loading.now(frame):
            return REPEAT_S
        if self.loading.ended():
            self.spent, self.meant_s = Spent(thread=self.thread), self.first_s
            return self.first_s
        if self.limit.fired or self.patient_until_s:
            return 0.0
        had_s, wall_s = self.spent.look(self.meant_s), self.spent.wall_s
        self.limit.busy = had_s < self.seconds and wall_s > last_resort_s(self.seconds)
        if had_s < self.seconds and not self.limit.busy:
            self.meant_s = min(max(self.seconds - had_s, _LEAST_S), LOOK_S)
            return self.meant_s
        self.limit.had_s, self.limit.wall_s = had_s, wall_s
        self.patient_until_s = time.monotonic() + PATIENCE_S
        return 0.0

    def patient(self, frame: FrameType | None) -> bool:
        """Return whether to wait with the first interruption for a line at which nothing can break."""
        return not self.limit.fired and time.monotonic() < self.patient_until_s and _keeps(frame)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[Limit]:
    """Raise TimeUp in the block once it has had `seconds`, again and again until `limit.over` is set."""
    current = Limit()

    class Interruption(TimeUp):
        limit = current

    trace, clock = sys.gettrace(), _Clock(current, seconds)
    main = threading.current_thread() is threading.main_thread()
    with _alarm(Interruption, clock) if main and hasattr(signal, "setitimer") else _watchdog(Interruption, clock):
        try:
            yield current
        finally:
            current.over = True
            sys.settrace(trace)


@contextlib.contextmanager
def _alarm(kind: type[TimeUp], clock: _Clock) -> Iterator[None]:
    looking = False

    def on_alarm(number: int, frame: FrameType | None) -> None:
        nonlocal looking
        if kind.limit.over or looking:  # a look may take longer than to the next alarm, where no core is free
            return
        looking = True
        wait_s = clock.wait_s(frame)
        signal.setitimer(signal.ITIMER_REAL, wait_s or REPEAT_S, LOOK_S if wait_s else REPEAT_S)
        looking = False
        if wait_s:
            return
        if clock.patient(frame):
            _arm_tracer(kind, skip=0)
        else:
            raise kind

    before = signal.signal(signal.SIGALRM, on_alarm)
    timer = signal.setitimer(signal.ITIMER_REAL, clock.first_s, LOOK_S)
    try:
        yield
    finally:
        kind.limit.over = True
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)


@contextlib.contextmanager
def _watchdog(kind: type[TimeUp], clock: _Clock) -> Iterator[None]:
    ended, lock = threading.Event(), threading.Lock()
    number = threading.get_ident()
    thread = ctypes.c_ulong(number)

    def watch() -> None:
        wait_s = clock.first_s
        while not ended.wait(wait_s or REPEAT_S):
            frame = sys._current_frames().get(number)
            wait_s = clock.wait_s(frame)
            if wait_s or clock.patient(frame):
                continue
            with lock:
                if not kind.limit.over:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(kind))

    watcher = threading.Thread(target=watch, daemon=True, name="time limit of a check")
    try:
        watcher.start()
    except RuntimeError:  # a browser has no threads: nothing ends code there but its tab
        yield
        return
    try:
        yield
    finally:
        kind.limit.over = True
        ended.set()
        with lock:  # from here on the watcher raises nothing; what it asked for and did not get is taken back
            _take_back(thread)
        watcher.join()


class _TakenBack(BaseException):
    """Raised in the place of an interruption that was asked for and has not come."""


def _take_back(thread: ctypes.c_ulong) -> None:
    """Cancel an interruption that was requested in this thread.

    Asking for none does not do: Python 3.11 then looks for one at each call, for ever, and signals that come meanwhile
    interrupt their own handlers.
    """
    with contextlib.suppress(_TakenBack):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TakenBack))
        while True:  # it comes at the first line
            pass


@contextlib.contextmanager
def user_interrupt() -> Iterator[threading.Event]:
    """Set an event at a real SIGINT (Ctrl-C, the kernel's stop button): no KeyboardInterrupt that the code raises."""
    interrupt = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield interrupt
        return

    def on_interrupt(number: int, frame: object) -> None:
        interrupt.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
