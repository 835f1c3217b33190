"""The exercise “Write an honest timer”."""

import itertools
import math
import re
import statistics
from collections.abc import Callable

import torch

from gpu_course.checks import Case, exercise
from gpu_course.lesson03.queue import Bench, slow_kernels


@exercise(
    minutes=14,
    difficulty=2,
    simulated=True,
    hints=(
        "For each repetition: empty the queue, read the clock, work, empty the queue, read the clock.",
        "The warm-up is a loop of its own, without the clock. Collect one time for each repetition in a list.",
        "Inside the second loop: synchronize, read the clock, work, synchronize, read the clock again. Append the "
        "difference of the two readings to the list. statistics.median takes the list.",
    ),
)
def median_time_s(
    work: Callable[[], object], clock: Callable[[], float], synchronize: Callable[[], None], warmup: int, repeats: int
) -> float:
    """Return the median seconds of one call of `work`, after `warmup` untimed calls."""
    for _ in range(warmup):
        work()
    times_s = []
    for _ in range(repeats):
        synchronize()  # what was queued before is not part of this repetition
        begin = clock()
        work()
        synchronize()  # `work` returned when it was queued, not when it was done
        times_s.append(clock() - begin)
    return statistics.median(times_s)


# Warm-up calls, kernels of each call (warm-up first), kernels in the queue before: the smallest that shows a mistake.
_BENCHES = (
    (0, (3,), 0),
    (0, (3,), 20),
    (2, (40, 30, 3), 0),
    (1, (50, 9, 1, 30, 2, 11, 5, 7, 4, 3), 10),
    (0, (5, 1, 9), 0),
    (3, (30, 8, 8, 2, 6, 4, 12), 5),
)


median_time_s.exempt("how often is a small number, and not below 0", "number_negative number_large limit")
median_time_s.exempt("it is handed functions, and time goes on", "second_call")


@median_time_s.checks
def _(case: Case) -> None:
    for warmup, kernels, queued in _BENCHES:
        with slow_kernels():
            bench = Bench(case.device, warmup, kernels, queued)
            got = case.call(bench.work, bench.clock, bench.synchronize, warmup, bench.repeats)
            torch.get_device_module("sim").synchronize()
        log, calls = bench.log, warmup + bench.repeats  # W: work, C: clock, S: synchronise
        count = log.count("W")
        for when, name, why in (
            (not count, "never calls `work`", "its time is what is asked for"),
            ("C" not in log, "never reads the `clock` that it is given",
             "another clock knows nothing of this device's time"),
            ("S" not in log, "never synchronises",
             "the call returns when the work is queued: you time the queueing alone"),
            (count == bench.repeats < calls, "does not warm up",
             "the first calls do set-up work that later calls are spared"),
            (count != calls, f"calls `work` {count} times, not warmup + repeats = {calls} times",
             "both numbers are the caller's"),
        ):  # fmt: skip
            case.fail_if(when, name, why)
        expected = statistics.median(bench.alone_s[warmup:])
        if not (isinstance(got, float) and math.isclose(got, expected, rel_tol=1e-6)):
            timed = re.match(f"(?:[SC]*W){{{warmup}}}(.*)", log)[1]  # what follows the last warm-up call
            for when, name, why in (
                ("C" not in timed.partition("W")[0], "does not read the clock before the work",
                 "a time is the difference of two readings: one before `work()`, one after it"),
                (re.search("WC", timed), "does not synchronise after the work",
                 "`clock` is read while the device still works: the call returned when it was queued"),
                (not re.match("[SC]*SC", timed), "starts the clock before the queue is empty",
                 "what was queued before, warm-up included, is billed to the first repetition"),
                (re.search("W[^C]*W", timed), "times all repetitions in one go",
                 "that gives their mean: one slow repetition moves it; time each, and take the median"),
            ):  # fmt: skip
                case.fail_if(when, name, why)
        case.equal(got, expected, rtol=1e-6, atol=0, why="the median of the repetitions, each timed alone")
    for failing, kind in itertools.product((0, 1), (ZeroDivisionError, torch.OutOfMemoryError)):
        bench = Bench(case.device, 1, (1, 1, 1))
        error = case.error_of(_fails_once(failing, kind), bench.clock, bench.synchronize, 1, 2)
        hidden = not isinstance(error, kind)  # an error of `work` reaches the caller
        case.fail_if(hidden, "hides an error of `work`", "work that fails has no time: let the error pass")


def _fails_once(failing: int, kind: type[Exception]) -> Callable[[], None]:
    """Return work whose call with this number, from 0 on, raises an error of this kind."""
    calls = itertools.count()

    def work() -> None:
        if next(calls) == failing:
            raise kind("work failed")

    return work
