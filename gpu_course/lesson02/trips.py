"""Times of a piece of work: on a device, on the CPU, or there and back by a data sheet."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.benchmark import Timer

from course_utils.gpus import GPU
from gpu_course.common import events
from gpu_course.lesson02.explorers.transfer import transfer

_LEAST_S = 0.05  # of calls that are timed together on the CPU


def measure_ms(work: Callable[[], Any], device: torch.device, repeats: int = 5) -> float:
    """Return the median time of `work` in milliseconds, the work that it leaves in the queue of `device` included.

    Lesson 03 explains each line. On the CPU, which has no queue, `repeats` is not used.
    """
    work()  # once before: a first call has set-up costs
    if device.type == "cpu":
        timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
        return timer.blocked_autorange(min_run_time=_LEAST_S).median * 1e3
    return events.median_ms(work, device, repeats)


def cpu_ms(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the time of x @ y on the CPU in milliseconds, live: with one thread or all of them, the quicker one."""
    times_s = []
    for threads in {1, torch.get_num_threads()}:
        timer = Timer("x @ y", globals={"x": x, "y": y}, num_threads=threads)
        timer.timeit(1)  # once before: a first call has set-up costs
        times_s.append(timer.blocked_autorange(min_run_time=_LEAST_S).median)
    return min(times_s) * 1e3


def predicted_ms(n: int, gpu: GPU) -> float:
    """Return the milliseconds of an n × n product with its copies there and back, predicted from data sheets.

    That is three copies from or to pageable memory, each with its latency, and 2n³ operations at the peak rate.
    """
    copy = transfer(nbytes=4 * n * n, pieces=1, pinned=False, gpu=gpu.name)
    return 3 * copy.total_s * 1e3 + 2 * n**3 / (gpu.peak_tflops["fp32"] * 1e9)
