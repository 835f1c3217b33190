"""How can a call be ended that takes too long, and a Ctrl-C of the user be told from one that the code fakes?

On the main thread of Linux and macOS the timer of the operating system (SIGALRM) ends the call; it also wakes a
sleeping one. On Windows and on other threads a watchdog thread raises the exception in the calling thread
(PyThreadState_SetAsyncExc), which a blocking call notices only when it returns. Code that catches everything in a
loop ends too: a swallowed interruption sets, when it is destroyed, a trace function that raises at the next line, and
so one `try` after the other is left; and the interruption comes again until the call ends. What no platform can end is
one call into compiled code that never returns to Python, such as `sum(itertools.count())`.

Code that imports a module is not interrupted, since a module loaded by half would break what needs it later; the time
begins anew after it. The first use of PyTorch's compiler loads for seconds.
"""

import contextlib
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

REPEAT_S = 0.02
LOADING_S = 60.0  # an import that takes longer is ended too


@dataclass
class Limit:
    """State of one time limit: `over` when the call has ended, `fired` how often it was interrupted."""

    over: bool = False
    fired: int = 0


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
    """Raise again after `skip` more lines, in this thread: for some number there is no `except` around the line."""
    left = skip

    def tracer(frame: Any, event: str, argument: object) -> Any:
        nonlocal left
        if kind.limit.over:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise BaseException.__new__(kind)
        return tracer

    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None and frame.f_globals.get("__name__") != "gpu_course.checks.sandbox":
        frame.f_trace = tracer
        frame = frame.f_back
    sys.settrace(tracer)


@dataclass
class _Loading:
    """Whether to wait with an interruption because the code imports, and whether it has done so since the last one."""

    begin_s: float = field(default_factory=time.monotonic)
    seen: bool = False

    def now(self, frame: FrameType | None) -> bool:
        """Say whether the code that runs in `frame` is importing."""
        while frame is not None and frame.f_globals.get("__name__") != "gpu_course.checks.sandbox":
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                self.seen = time.monotonic() - self.begin_s < LOADING_S
                return self.seen
            frame = frame.f_back
        return False

    def ended(self) -> bool:
        """Say whether an import was waited for, once."""
        seen, self.seen = self.seen, False
        return seen


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[Limit]:
    """Raise TimeUp in the block after `seconds`, again and again until `limit.over` is set."""
    current = Limit()

    class Interruption(TimeUp):
        limit = current

    trace = sys.gettrace()
    main = threading.current_thread() is threading.main_thread()
    with _alarm(Interruption, seconds) if main and hasattr(signal, "setitimer") else _watchdog(Interruption, seconds):
        try:
            yield current
        finally:
            current.over = True
            sys.settrace(trace)


@contextlib.contextmanager
def _alarm(kind: type[TimeUp], seconds: float) -> Iterator[None]:
    loading = _Loading()

    def on_alarm(number: int, frame: FrameType | None) -> None:
        if kind.limit.over or loading.now(frame):
            return
        if loading.ended():
            signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_S)
        else:
            raise kind

    before = signal.signal(signal.SIGALRM, on_alarm)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_S)
    try:
        yield
    finally:
        kind.limit.over = True
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)


@contextlib.contextmanager
def _watchdog(kind: type[TimeUp], seconds: float) -> Iterator[None]:
    ended, lock = threading.Event(), threading.Lock()
    number, loading = threading.get_ident(), _Loading()
    thread = ctypes.c_ulong(number)

    def watch() -> None:
        wait_s = seconds
        while not ended.wait(wait_s):
            wait_s = REPEAT_S
            if loading.now(sys._current_frames().get(number)):
                continue
            if loading.ended():
                wait_s = seconds
                continue
            with lock:
                if not kind.limit.over:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(kind))

    watcher = threading.Thread(target=watch, daemon=True, name="time limit of a check")
    watcher.start()
    try:
        yield
    finally:
        kind.limit.over = True
        ended.set()
        with lock:  # from here on the watcher raises nothing; what it asked for and did not get is taken back
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
        watcher.join()


@dataclass
class Interrupt:
    """Whether the user pressed Ctrl-C (or the kernel's stop button) during the block."""

    happened: bool = False


@contextlib.contextmanager
def user_interrupt() -> Iterator[Interrupt]:
    """Notice a real SIGINT, so that it can be told from a KeyboardInterrupt that the code raises itself."""
    interrupt = Interrupt()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield interrupt
        return

    def on_interrupt(number: int, frame: object) -> None:
        interrupt.happened = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
