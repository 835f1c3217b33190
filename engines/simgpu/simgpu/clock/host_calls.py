"""Published times of single calls, without a profiler, beside what the assumed host takes for them: by regime."""

import csv
import functools
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simgpu.ground import tables
from simgpu.machine import hosts
from simgpu.machine.rates import Costs


@dataclass(frozen=True)
class HostCall:
    """A published time of a call, in µs, and what a host of hosts.toml takes for the `asks` of it, its classes."""

    regime: str
    host: str
    gpu: str
    date: str
    address: str
    what: str
    us: float
    asks: str

    def ratio(self, host: hosts.Host = hosts.DEFAULT) -> float:
        """Predicted over measured time; below 1 the clock promises too much."""
        return _us(self.asks, host) / self.us


def _us(asks: str, host: hosts.Host) -> float:
    """Return the µs of classes such as "backward pass + 2 node"."""
    total_ns = Costs().read_ns if asks.endswith(" + bus") else 0
    for part in asks.removesuffix(" + bus").split(" + "):
        count, _, name = part.partition(" ")
        total_ns += int(count) * host.price_ns(name) if count.isdigit() else host.price_ns(part)
    return total_ns / 1000


@functools.cache
def figures() -> "CallFigures":
    """Return the rows of host_calls.csv, which show themselves as a table of how far the assumed host is from them."""
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, Any]] = [row | {"us": float(row["us"])} for row in csv.DictReader(text)]
    return CallFigures(tuple(HostCall(**row) for row in rows))


@dataclass(frozen=True, repr=False)
class CallFigures(tables.Table):
    """How far the assumed host is from published calls, by regime; by hosts left out, and for hosts known by a row."""

    rows: tuple[HostCall, ...]

    head = ("calls", "rows", "hosts", "median error", "bias", "worst", "hosts left out", "host known by another row")
    right = (1, 2, 3, 4, 5, 6, 7)

    def caption(self) -> str:
        return "Simulated host time over published time of single calls, the host assumed"

    def cells(self) -> list[list[str]]:
        return [[name, *self._cells([row for row in self.rows if row.regime == name])] for name in self.regimes]

    @property
    def regimes(self) -> tuple[str, ...]:
        """The kinds of calls, in the order of the file."""
        return tuple(dict.fromkeys(row.regime for row in self.rows))

    def ratios(self, regime: str) -> list[float]:
        """Return predicted over measured time of the rows of a regime, on the assumed host."""
        return [row.ratio() for row in self.rows if row.regime == regime]

    def bias(self, regime: str) -> float:
        """Return the median of these, less 1."""
        return statistics.median(self.ratios(regime)) - 1

    def left_out(self, regime: str) -> list[float]:
        """Return the ratios, each on a host whose speed all other hosts of the regime tell."""
        return self._by(regime, lambda one, row: one.host != row.host)

    def known(self, regime: str) -> list[float]:
        """Return the same, each on a host whose speed its own other rows tell."""
        return self._by(regime, lambda one, row: one.host == row.host and one is not row)

    def _by(self, regime: str, tells: Callable[[HostCall, HostCall], bool]) -> list[float]:
        here = [row for row in self.rows if row.regime == regime]
        found = []
        for row in here:
            others = [math.log(one.ratio()) for one in here if tells(one, row)]
            if others:
                found.append(row.ratio() / math.exp(statistics.mean(others)))
        return found

    def _cells(self, rows: list[HostCall]) -> list[str]:
        regime, ratios = rows[0].regime, [row.ratio() for row in rows]
        worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
        hosts_, bias = len({row.host for row in rows}), self.bias(regime)
        figures = [f"{median_error(ratios):.0%}", f"{bias:+.0%}", f"x {worst:.2f}"]
        tried = [f"{median_error(some):.0%}" if some else "–" for some in (self.left_out(regime), self.known(regime))]
        return [str(len(rows)), str(hosts_), *figures, *tried]


def median_error(ratios: Iterable[float]) -> float:
    """Return the median of |ratio - 1|."""
    return statistics.median(abs(ratio - 1) for ratio in ratios)
