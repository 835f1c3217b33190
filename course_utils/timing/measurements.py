"""Time of one call: median and spread."""

import statistics
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import simgpu
from course_utils import arguments, devices, plots

_LEAST_RUNS = 5  # fewer say nothing about the spread
_SIMULATED_RUNS = 3


@dataclass(frozen=True)
class Timing:
    """How long one call takes: the median over runs and their spread, the distance between the quartiles (IQR).

    `times_s` has one entry a run, in seconds a call; a run is `number` calls between two synchronisations.
    """

    times_s: tuple[float, ...] = field(repr=False)
    number: int
    device: str
    label: str  # "live" or "simulated"
    evidence: simgpu.Evidence | None = None  # of a simulated time: how far the clock is from published runs like it

    @property
    def repeats(self) -> int:
        """Number of runs."""
        return len(self.times_s)

    @property
    def median_s(self) -> float:
        """Median time of one call, in seconds."""
        return statistics.median(self.times_s)

    @property
    def iqr_s(self) -> float:
        """Distance between the quartiles of the runs, in seconds; 0 for a single run."""
        if self.repeats < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times_s, n=4, method="inclusive")
        return high - low

    def __str__(self) -> str:
        runs = f"{self.repeats} runs" if self.repeats > 1 else "1 run"
        runs += f" of {self.number:,} calls" if self.number > 1 else ""
        median, spread = plots.seconds_text(self.median_s), plots.seconds_text(self.iqr_s)
        known = "" if self.evidence is None else f" ({self.evidence.short})"
        return f"median {median}, spread (IQR) {spread}, {runs}, {self.label} on {self.device}{known}"

    def _repr_html_(self) -> str:
        return f"<p>{self}</p>"


def measure(
    fn: Callable[[], Any],
    *,
    device: torch.device | str | None = None,
    min_time_s: float = 0.2,
    repeats: int | None = None,
) -> Timing:
    """Return how long one call of `fn` takes on `device` (default: the one that the lessons use).

    Live, a run is as many calls as make the clock's own cost negligible, and runs are repeated until they took
    `min_time_s` in all, at least five times; with `repeats`, exactly so often. On the simulated GPU a run is one call,
    from an empty queue until the queue is empty again. `device` alone is waited for, not others that `fn` may use.
    Raises TypeError or ValueError that names a wrong argument, and ValueError where `fn` leaves the simulated GPU idle
    that it is measured on, or uses one while the host is measured.
    """
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}, it must be a function without arguments, such as lambda: x @ x")
    chosen = devices.chosen(device)
    arguments.positive("min_time_s", min_time_s)
    if repeats is not None:
        arguments.whole("repeats", repeats)
    if simgpu.is_simulated(chosen):
        return _simulated(fn, chosen, repeats or _SIMULATED_RUNS)
    once_s = _once(fn, chosen)
    number, times = _runs(fn, chosen, once_s, min_time_s, repeats)
    return Timing(tuple(times), number, str(chosen), "live")


def _once(fn: Callable[[], Any], device: torch.device) -> float:
    """Warm up, then return the seconds of one call, which decide how many runs there can be."""
    on_host = device.type == "cpu" and simgpu.enabled()
    clock, before = _clock(device), on_host and simgpu.clock_ms()
    fn()
    if on_host and simgpu.clock_ms() != before:
        raise ValueError(f"device is '{device}', but fn used the simulated GPU, whose host time says nothing")
    start = clock()
    fn()
    return clock() - start


def _runs(fn: Any, device: torch.device, once_s: float, min_time_s: float, repeats: int | None) -> tuple:
    """Return the number of calls in a run, and the seconds a call of each run."""
    plain = timeit.Timer("fn()", timer=_clock(device), globals={"fn": fn})
    if repeats is not None:
        number = max(1, round(min_time_s / repeats / max(once_s, 1e-9)))
        return number, [seconds / number for seconds in plain.repeat(repeats, number)]
    from torch.utils import benchmark

    timer = benchmark.Timer("fn()", globals={"fn": fn}, num_threads=torch.get_num_threads(), timer=_clock(device))
    measured = timer.blocked_autorange(min_run_time=max(min_time_s, _LEAST_RUNS * once_s))
    number, times = measured.number_per_run, list(measured.times)
    more = plain.repeat(max(0, _LEAST_RUNS - len(times)), number)  # where a run took long
    return number, times + [seconds / number for seconds in more]


def _clock(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds that first waits for `device`."""
    if device.type == "cpu":
        return timeit.default_timer
    wait, given = torch.get_device_module(device).synchronize, () if device.type == "mps" else (device,)

    def clock() -> float:
        wait(*given)
        return timeit.default_timer()

    return clock


def _simulated(fn: Callable[[], Any], device: torch.device, repeats: int) -> Timing:
    """Return the virtual time of `fn`; the first call is not counted, as on a real device."""
    row = f"sim:{torch.sim.current_device() if device.index is None else device.index}"
    with simgpu.timeline() as first:
        fn()
        devices.synchronize(device)
    if not any(record.row == row for record in first.records):
        raise ValueError(
            f"device is '{device}', but fn gave it nothing to do; say the device that works, such as 'cpu'"
        )
    times = []
    for _ in range(repeats):
        devices.synchronize(device)
        start = simgpu.clock_ms()
        fn()
        devices.synchronize(device)
        times.append(round((simgpu.clock_ms() - start) * 1e6) / 1e9)  # whole nanoseconds
    return Timing(tuple(times), 1, str(device), "simulated", first.evidence)
