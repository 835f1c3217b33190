"""Who sets the pace: the host that launches, the GPU that computes, or the host that waits for values?"""

from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Explorer, Slider

__all__ = ["READ_US", "Pace", "explore", "pace"]

KERNELS = 48  # of the same length, launched one after the other
READ_US = 10.0  # the copy of a value to the host, which has a launch of its own: as simgpu.Costs


@dataclass(frozen=True)
class Pace:
    """What host and GPU did, as (begin, length) in µs; a read after `every` kernels each, 0: the last one alone."""

    launch_us: float
    kernel_us: float
    every: int
    launches: tuple[tuple[float, float], ...]
    reads: tuple[tuple[float, float], ...]
    kernels: tuple[tuple[float, float], ...]

    total_us = property(lambda p: sum(p.reads[-1]), doc="Time until the host has the last value.")
    busy = property(lambda p: len(p.kernels) * p.kernel_us / p.total_us, doc="Share in which the GPU computes.")


def pace(*, launch_us: float, kernel_us: float, every: int) -> Pace:
    """Return the run of `KERNELS` kernels: the GPU begins each when it is launched and the one before has ended.

    A read is launched too, waits until the queue is empty, and takes `READ_US` then. The last one is always there. The
    simulated GPU has the same rules.
    """
    host = free = 0.0
    launches, reads, kernels = [], [], []
    for number in range(1, KERNELS + 1):
        launches.append((host, launch_us))
        host += launch_us
        kernels.append((max(host, free), kernel_us))
        free = sum(kernels[-1])
        if number == KERNELS or (every and number % every == 0):
            end = max(host + launch_us, free) + READ_US
            reads.append((host, end - host))
            host = free = end
    return Pace(launch_us, kernel_us, every, tuple(launches), tuple(reads), tuple(kernels))


def describe(p: Pace) -> str:
    """Return the result in words."""
    how = "once, at the end" if not p.every else "after each kernel" if p.every == 1 else f"every {p.every} kernels"
    if p.busy > 0.9:
        why = "the GPU sets the pace"
    elif p.launch_us >= p.kernel_us:
        why = "the launches set the pace" if len(p.reads) == 1 else "launches and reads set the pace"
    else:
        why = "the reads set the pace"
    return (
        f"{KERNELS} kernels of {p.kernel_us:g} µs, launched in {p.launch_us:g} µs each. A value is read {how}. That "
        f"takes {p.total_us:,.0f} µs, and the GPU computes for {p.busy:.0%} of it: {why}. Predicted: a read takes a "
        f"launch and {READ_US:g} µs, and leaves the queue empty."
    )


def draw(p: Pace) -> Any:
    """Return the picture: host and GPU in time."""
    figure, axes = plots.new("Host and GPU", height_in=2.4)
    rows = (
        (1, p.launches, plots.SKY, "launch"),
        (1, p.reads, plots.PALE, "read: waits"),
        (0, p.kernels, plots.GREEN, "kernel"),
    )
    for height, spans, colour, label in rows:
        axes.broken_barh(spans, (height - 0.34, 0.68), color=colour, ec="white", lw=0.4, label=label)
    axes.set_yticks([0, 1], ["GPU", "host"])
    axes.set(xlim=(0, p.total_us), ylim=(-0.6, 1.6), xlabel="µs, predicted")
    axes.grid(False, axis="y")
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    return figure


def _when(every: int) -> str:
    """Return after which kernels the host reads."""
    return {0: "at the end", 1: "every one"}.get(every, f"every {every}")


def explore() -> Explorer:
    """Return the explorer of lesson 06."""
    microseconds = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    controls = [
        Slider("launch_us", "Launch, µs", microseconds, 5.0),
        Slider("kernel_us", "Kernel, µs", microseconds, 20.0),
        Slider("every", "Read", (0, 1, 2, 4, 8, 16, 24), 1, _when),
    ]
    return Explorer("who sets the pace", pace, draw, describe, controls)
