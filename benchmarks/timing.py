"""Does the timing helper agree with torch.utils.benchmark, and does the roofline find the machine's best matrix rate?

    python -m benchmarks.timing [threads]

Both take turns on the same workloads in one process, because other work on the machine disturbs both. By default with
one thread: two that wait for each other on a busy machine now take 50 µs, now 8 ms. A workload agrees when the medians
of the two differ by no more than the reference's own spread, `Measurement.iqr`. Where only a wider spread holds the
difference, that is said: of its runs of two lengths, or of its medians from turn to turn. Exit status 1 if none does.
"""

from __future__ import annotations

import functools
import statistics
import sys
from dataclasses import dataclass
from unittest import mock

import torch
from torch.utils import benchmark

from course_utils import plots, timing
from course_utils.timing import rates as searching

TURNS, RATE_LEAST = 11, 0.90
_CPU = torch.device("cpu")


def workloads() -> dict[str, object]:
    """Return five functions that take from about 10 µs to about 100 ms on one core."""
    small, row = torch.ones(5_000), torch.ones(500_000)
    middle, large = torch.randn(400, 400), torch.randn(1024, 1024)
    images, layer = torch.randn(8, 32, 64, 64), torch.nn.Conv2d(32, 64, 3, padding=1)
    layer.requires_grad_(False)
    return {
        "sines of 5,000 numbers": lambda: small.sin(),
        "product of 500,000 numbers": lambda: row * row,
        "matrix product, 400 rows": lambda: middle @ middle,
        "convolution": lambda: layer(images),
        "five matrix products, 1,024 rows": lambda: [large @ large for _ in range(5)],
    }


def reference(fn: object, min_time_s: float) -> tuple[benchmark.Measurement, list[float]]:
    """Return what torch.utils.benchmark measures by itself, and the seconds a call of as many runs a tenth as long.

    Which of two lengths it chooses for calls of a few microseconds is chance, and the median depends on it by 1 %.
    """
    timer = benchmark.Timer("fn()", globals={"fn": fn}, num_threads=torch.get_num_threads())
    found = timer.blocked_autorange(min_run_time=min_time_s)
    shorter = found.number_per_run // 10
    return found, [timer.timeit(shorter).mean for _ in found.times if shorter]


@dataclass(frozen=True)
class Compared:
    """The two medians in seconds, and two spreads of the reference: its own, and a wider one (see `compare`)."""

    ours_s: float
    theirs_s: float
    iqr_s: float
    wider_s: float

    @property
    def difference_s(self) -> float:
        """Distance of the medians, in seconds."""
        return abs(self.ours_s - self.theirs_s)

    @property
    def missed(self) -> bool:
        """Whether no spread holds the difference."""
        return self.difference_s > max(self.iqr_s, self.wider_s)

    @property
    def verdict(self) -> str:
        """Words for a difference that is not within the reference's own spread, nothing for one that is."""
        if self.missed:
            return "MISSED"
        return "" if self.difference_s <= self.iqr_s else "within the wider spread only"

    def __str__(self) -> str:
        numbers = (self.ours_s, self.theirs_s, self.difference_s, self.iqr_s, self.wider_s)
        return "".join(f"{plots.seconds_text(seconds):>11}" for seconds in numbers) + f"  {self.verdict}".rstrip()


def compare(fn: object, turns: int = TURNS, min_time_s: float = 0.1) -> Compared:
    """Return the comparison of both over all turns; each is the first in every other turn.

    `iqr_s` is `Measurement.iqr` of the reference's runs, merged. `wider_s` is the larger of two others: that of these
    runs and as many of a tenth of their length, and that of the medians of the turns.
    """
    ours, theirs, shorter = [], [], []
    for turn in range(turns):
        for who in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
            if who == "ours":
                ours += timing.measure(fn, device=_CPU, min_time_s=min_time_s).times_s
            else:
                found, more = reference(fn, min_time_s)
                theirs.append(found)
                shorter.append(more)
    (merged,) = benchmark.Measurement.merge(theirs)
    both = [found.times + more for found, more in zip(theirs, shorter, strict=True)]
    wider_s = max(_iqr([seconds for times in both for seconds in times]), _iqr([statistics.median(t) for t in both]))
    return Compared(statistics.median(ours), merged.median, merged.iqr, wider_s)


def _iqr(times_s: list[float]) -> float:
    return timing.Timing(tuple(times_s), 1, "", "").iqr_s


def rates(turns: int = 5) -> dict[str, tuple[float, float, float]]:
    """Return for each format the search's best TFLOP/s, the reference's best, and the share; medians over the turns.

    The reference tries every size of the search, also those that the search leaves out, as long as one takes 0.5 s.
    Both multiply the same matrices and take turns in being the first.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    with mock.patch.object(searching, "product", functools.cache(searching.product)):
        for turn in range(turns):
            for fmt in searching.formats(_CPU):
                sides = [lambda fmt=fmt: searching.best_tflops(fmt, _CPU), lambda fmt=fmt: _best(fmt)]
                values = {place: sides[place]() for place in ((0, 1) if turn % 2 else (1, 0))}
                found.setdefault(fmt, []).append((values[0], values[1]))
    return {fmt: _medians(pairs) for fmt, pairs in found.items()}


def _best(fmt: str) -> float:
    """Return the best TFLOP/s that torch.utils.benchmark finds, over all sizes."""
    best = 0.0
    for size in searching.SIZES["cpu"]:
        if best and 2 * size**3 / best / 1e12 > 0.5:
            break
        found, shorter = reference(searching.product(fmt, size, _CPU), 0.1)
        best = max(best, 2 * size**3 / statistics.median(found.times + shorter) / 1e12)
    return best


def _medians(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the median of each side and of the share of the first in the second."""
    ours, theirs = zip(*pairs, strict=True)
    return statistics.median(ours), statistics.median(theirs), statistics.median(a / b for a, b in pairs)


def main() -> int:
    """Print both tables and return 0 if every target is reached."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    missed = 0
    print(f"{torch.get_num_threads()} thread(s), {TURNS} turns, medians")
    columns = ("helper", "benchmark", "difference", "its IQR", "wider")
    print(f"{'workload':34}" + "".join(f"{word:>11}" for word in columns))
    for name, fn in workloads().items():
        found = compare(fn)
        missed += found.missed
        print(f"{name:34}{found}")
    for fmt, (ours, theirs, share) in rates().items():
        missed += share < RATE_LEAST
        print(f"{fmt}: search {ours:.4g} TFLOP/s, torch.utils.benchmark {theirs:.4g}: {share:.0%} (at least 90%)")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
