"""Was this timing honest? A queue on the simulated GPU with a clock, and the name of what a timer left out."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from course_utils import simulator

__all__ = ["Bench", "slow_kernels"]

_KERNEL_NS = 200_000


@contextmanager
def slow_kernels() -> Iterator[None]:
    """Let every kernel of the simulated GPU take at least 0.2 ms, so that queues grow long at no real cost."""
    before = simulator.world().costs
    simulator.configure(costs=simulator.Costs(kernel_ns=_KERNEL_NS))
    try:
        yield
    finally:
        simulator.configure(costs=before)


@dataclass(frozen=True)
class _Truth:
    """What each timed call of `work` takes on its own, in seconds, and what else a timer might give."""

    warmup_s: tuple[float, ...]
    times_s: tuple[float, ...]

    def others(self) -> Iterator[tuple[str, str, float]]:
        """Yield the name of a mistake, why it matters, and the number that it gives."""
        times = self.times_s
        yield ("gives the mean of the repetitions", "one slow repetition moves the mean; the median stays",
               statistics.mean(times))  # fmt: skip
        yield ("gives the total of all repetitions", "the time of one call is asked for", sum(times))
        yield "gives the fastest repetition", "the median is asked for: half are slower, half faster", min(times)
        yield "gives the slowest repetition", "the median is asked for: half are slower, half faster", max(times)
        yield ("counts the warm-up calls as repetitions", "they are there so that set-up costs stay out",
               statistics.median(self.warmup_s + times))  # fmt: skip
        yield ("takes the middle repetition without sorting", "the median is the middle of the sorted times",
               times[len(times) // 2])  # fmt: skip
        yield "gives the first repetition alone", "take all repetitions, and their median", times[0]
        yield "gives the last repetition alone", "take all repetitions, and their median", times[-1]
        median, why = statistics.median(times), "`clock` counts seconds, and the name ends in _s"
        yield "returns milliseconds", why, 1e3 * median
        yield "returns microseconds", why, 1e6 * median
        yield "subtracts the end from the beginning", "the time is the second reading minus the first", -median
        yield ("divides by the number of repetitions", "each time in the list is one call's already",
               median / len(times))  # fmt: skip
        yield ("measures each repetition from the first reading of the clock",
               "read the clock before each repetition, and again after it",
               statistics.median(itertools.accumulate(times)))  # fmt: skip
        yield "returns nanoseconds", why, 1e9 * median
        for factor in (1e3, 1e6, 1e9):
            yield "divides what is in seconds already", why, median / factor
        for beside in (len(times) // 2 - 1, len(times) // 2 + 1):
            if 0 <= beside < len(times):
                yield ("takes a time beside the median", "of an odd number of sorted times it is at len(times) // 2",
                       sorted(times)[beside])  # fmt: skip


class Bench:
    """Work of known length on the simulated GPU, with the `clock` and `synchronize` that an answer is given.

    `kernels` says how many kernels each call of `work` queues, one entry a call; `queued` kernels of somebody else are
    in the queue when the answer begins. What the answer does is kept in `log`: W (work), C (clock), S (synchronise).
    """

    def __init__(self, device: torch.device, warmup: int, kernels: Sequence[int], queued: int = 0) -> None:
        self.warmup, self.repeats = warmup, len(kernels) - warmup
        self.kernels, self.log = tuple(kernels), ""
        self._x = torch.zeros(1, device=device)
        alone = tuple(self._alone(count) for count in self.kernels)
        self.truth = _Truth(alone[:warmup], alone[warmup:])
        self._queue(queued)
        self.work, self.clock, self.synchronize = self._functions()

    def _functions(self) -> tuple[Callable, Callable, Callable]:
        def work() -> None:
            self._queue(self.kernels[min(self.log.count("W"), len(self.kernels) - 1)])
            self.log += "W"

        def clock() -> float:
            self.log += "C"
            return simulator.clock_ms() / 1e3

        def synchronize() -> None:
            self.log += "S"
            torch.sim.synchronize()

        for given in (work, clock, synchronize):
            given.__qualname__ = given.__name__  # Python's messages say it: nothing of ours belongs there
        return work, clock, synchronize

    def _queue(self, count: int) -> None:
        for _ in range(count):
            self._x.add_(1)

    def _alone(self, count: int) -> float:
        """Return the seconds of one call with an empty queue before it and after it."""
        torch.sim.synchronize()
        begin_ms = simulator.clock_ms()
        self._queue(count)
        torch.sim.synchronize()
        return (simulator.clock_ms() - begin_ms) / 1e3

    def right(self, got: float) -> bool:
        """Return whether `got` is the median; of an even number, anything between the two in the middle."""
        low, high = statistics.median_low(self.truth.times_s), statistics.median_high(self.truth.times_s)
        return low * (1 - 1e-5) <= got <= high * (1 + 1e-5)

    def unused(self) -> tuple[str, str]:
        """Return what of its arguments the answer left unused or used wrongly often, and why that matters."""
        calls, wanted = self.log.count("W"), self.warmup + self.repeats
        if not calls:
            return "never calls `work`", "its time is what is asked for"
        if "C" not in self.log:
            return "never reads the `clock` that it is given", "another clock knows nothing of this device's time"
        if "S" not in self.log:
            return "never synchronises", "the call returns when the work is queued: you time the queueing alone"
        if calls == self.repeats < wanted:
            return "does not warm up", "the first calls do set-up work that later calls are spared"
        if calls != wanted:
            return f"calls `work` {calls} times, not warmup + repeats = {wanted} times", "both numbers are the caller's"
        return "", ""

    def mistake(self, got: float) -> tuple[str, str]:
        """Return the name of the mistake behind the wrong time `got` and why it matters, or two empty texts."""
        places = [place for place, step in enumerate(self.log) if step == "W"][self.warmup :]
        if "C" not in self.log[: places[0]]:
            return ("does not read the clock before the work",
                    "a time is the difference of two readings: one before `work()`, one after it")  # fmt: skip
        after = [self._between(place, place + 1, "forward") for place in places]
        before = self._between(places[0], places[0], "back")
        if "C" in "".join(after) and not all("S" in steps for steps in after if "C" in steps):
            return ("does not synchronise after the work",
                    "`clock` is read while the device still works: the call returned when it was queued")  # fmt: skip
        if "S" not in before:
            return ("starts the clock before the queue is empty",
                    "what was queued before, warm-up included, is billed to the first repetition")  # fmt: skip
        if not all("C" in steps for steps in after):
            return ("times all repetitions in one go",
                    "that gives their mean: one slow repetition moves it; time each, and take the median")  # fmt: skip
        for name, why, wrong in self.truth.others():
            if math.isclose(got, wrong, rel_tol=1e-5):
                return name, why
        return "", ""

    def _between(self, place: int, start: int, way: str) -> str:
        """Return the steps from `start` to the next reading of the clock; back: those before the last reading."""
        if way == "forward":
            rest = self.log[start:]
            stop = min((at for at in (rest.find("C"), rest.find("W")) if at >= 0), default=len(rest))
            return rest[: stop + 1].rstrip("W")
        head = self.log[:place].rpartition("C")[0]
        return head[head.rfind("W") + 1 :]
