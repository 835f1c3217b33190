"""Stopwatch for a busy machine: time stands still while a thread waits for its turn."""

import time
from pathlib import Path

_SCHEDULED = Path("/proc/thread-self/schedstat")  # ns that this thread ran, ns that it waited for a processor


def elapsed_s() -> float:
    """Return a clock in seconds that stands still while the thread could run and other programs have the processors.

    Where the system does not tell, which only Linux does, it is `time.perf_counter`.
    """
    try:
        waited_ns = int(_SCHEDULED.read_bytes().split()[1])
    except (OSError, IndexError):
        waited_ns = 0
    return time.perf_counter() - waited_ns / 1e9
