"""Latency from asking for a result to having it."""

from collections.abc import Callable

import torch

import simgpu
from course_utils import timing


def seconds_until_done(function: Callable, *tensors: torch.Tensor) -> float:
    """Return the time in seconds of `function(*tensors)`, the wait for its result included: the shortest of many.

    The shortest, since other programs on the machine only ever make a time longer. It is measured live; for tensors on
    the simulated GPU it is the time of its clock.
    """
    device = tensors[0].device
    wait = torch.get_device_module(device).synchronize  # bound once: looking it up would be measured too

    def call_and_wait() -> None:
        function(*tensors)
        wait()

    def call() -> None:
        function(*tensors)

    # nothing to wait for, and a clock that counts the wait
    waits_by_itself = device.type == "cpu" or simgpu.is_simulated(device)
    measured = timing.measure(call if waits_by_itself else call_and_wait, device=device, min_time_s=0.05)
    return min(measured.times_s)
