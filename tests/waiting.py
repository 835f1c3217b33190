"""How does a test wait for something, and what does it judge in place of seconds?

Here alone a clock is read: `tests/project/test_clocks.py` looks at all other files.
"""

import sys
import time
from collections.abc import Callable

HANG_S = 300.0  # ends a test that hangs, and decides nothing: a busy machine may take a minute for a second's work


def until(condition: Callable[[], object], limit_s: float = HANG_S) -> None:
    """Return once `condition()` is true. Raises TimeoutError after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"nothing came of it in {limit_s:g} s")
        time.sleep(0.01)


def compute(cpu_s: float) -> None:
    """Use so many seconds of a core, however long that takes."""
    end_s = time.process_time() + cpu_s
    while time.process_time() < end_s:
        pass


def calls(work: Callable[[], object]) -> int:
    """Return how many functions are called while `work` runs, Python's and compiled ones: the same on any machine."""
    number = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return number
