"""When does an interrupt end a launch: only where no process or descriptor is between being made and being noted?"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["check", "held"]

_kept: list[Any] = []  # handlers of interrupts that came while they were held


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold interrupts back until `check` or the end of the block. None is lost, as one in a finalizer would be."""
    before = signal.getsignal(signal.SIGINT) if _in_main() else None
    if not callable(before):  # only the main thread is interrupted, and only if Python handles it
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: _kept.append(before))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        check()


def check() -> None:
    """Let an interrupt that is held back come through: mostly this raises KeyboardInterrupt."""
    if _kept and _in_main():
        handler = _kept.pop()
        _kept.clear()
        handler(signal.SIGINT, None)


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()
