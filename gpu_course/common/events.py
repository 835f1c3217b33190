"""Device time by events in its queue.

A wait for an event itself, followed by `elapsed_time`, may last for ever on Apple's GPU, and a short interval may raise
there (https://github.com/pytorch/pytorch/issues/162872, https://github.com/pytorch/pytorch/pull/196395): its work is
timed by the host's clock.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

__all__ = ["median_ms"]


def median_ms(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median time of `work` in milliseconds, from an empty queue of `device` on until it is empty again."""
    backend = torch.get_device_module(device)
    once_ms = _by_the_host_ms if device.type == "mps" else _between_events_ms
    return median(once_ms(work, backend) for _ in range(repeats))


def _between_events_ms(work: Callable[[], Any], backend: Any) -> float:
    start, end = backend.Event(enable_timing=True), backend.Event(enable_timing=True)
    backend.synchronize()
    start.record()
    work()
    end.record()
    backend.synchronize()
    return start.elapsed_time(end)


def _by_the_host_ms(work: Callable[[], Any], backend: Any) -> float:
    backend.synchronize()
    begin = time.perf_counter()
    work()
    backend.synchronize()
    return 1e3 * (time.perf_counter() - begin)
