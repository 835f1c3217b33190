"""How long does a device work, by the marks that it puts into its own queue?"""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

__all__ = ["median_ms"]


def median_ms(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median time of `work` in milliseconds between two events, from an empty queue of `device` on."""
    backend = torch.get_device_module(device)
    times_ms = []
    for _ in range(repeats):
        start, end = backend.Event(enable_timing=True), backend.Event(enable_timing=True)
        backend.synchronize()
        start.record()
        work()
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    return median(times_ms)
