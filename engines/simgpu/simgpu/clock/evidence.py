"""Error of the clock against published times, by regime: by what decided the time.

`published.json` has the runs, each with its address, what the clock predicts and the regime of that prediction;
`python -m benchmarks.published` makes them. A simulated time carries the figure of its own regime, and no other
(`Evidence`). Runs that a constant of the clock was chosen by are marked, and count in no figure.

Predicted is what the GPU takes, with a host that takes a launch and no more: it hides behind the GPU's work, but for
short operators. Of these the figure is another one, by what is known of their host (`HOSTS`).
"""

import functools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from simgpu.clock import host_calls, memory_peaks
from simgpu.clock.journal import Record
from simgpu.ground import tables
from simgpu.machine import gpus, hosts
from simgpu.machine.machines import Machine
from simgpu.machine.operator_table import is_library

__all__ = [
    "FILE", "HOSTS", "PEAKS", "REGIMES", "SHORT_NS", "ErrorBar", "Evidence", "HostFigure", "HostFigures",
    "PublishedRun", "bar", "card", "error_bar", "of",
    "of_regime", "regime",
]  # fmt: skip

FILE = Path(__file__).with_name("published.json")
PEAKS = memory_peaks.FILE
SHORT_NS = 40_000  # so long the host takes for an operator of a model, where people measured: 35 to 60 µs
_ALONE = 0.9  # of the time of all kernels

REGIMES = {  # in the order in which they are looked for, as they stand in a label
    "several GPUs": "on several GPUs",
    "host work": "where the host's own work, such as reading input, takes most of the time",
    "compiled": "for compiled models",
    "short operators": "for operators below 40 µs, with 5 µs a launch and no more of the host",
    "recurrent": "for recurrent layers of cuDNN",
    "copies over the bus": "for copies over the bus",
    "power": "for products that the card's power limit slows down",
    "odd rows": "for 16-bit products with rows that are no multiple of 16 bytes",
    "products": "for matrix products alone",
    "memory traffic": "for operators that only move memory",
    "training": "for training steps",
    "inference": "for inference",
}
HOSTS = {  # what is known of the host of a program that it decides: what a figure is for
    "unknown": "the host is assumed: a server, chosen by traces of other hosts",
    "its other models": "the host is known from other programs that were measured on it",
    "one step of this program": "one step of the program was measured on it, with another batch",
    "one step of another program": "one step of another program was measured on it",
}
_BY_HOST = {  # of programs that their host decides: the situation, and the words
    "host assumed": ("unknown", "where the host decides, which is assumed within a factor of 3"),
    "host assumed, compiled": (
        "compiled calls",
        "where entering graphs decides, on a host that is assumed within a factor of 3",
    ),
    "host measured": ("one step of another program", "where the host decides, which one of its programs told"),
}
OTHER_COSTS = "other costs"  # of the host or the GPU than those that were compared
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot")


@dataclass(frozen=True)
class Evidence:
    """Error of a time simulated on `gpu`: the figure of its `regime`.

    `median` is that of |predicted / measured - 1| over `runs` published runs, `bias` the median of predicted /
    measured - 1, below 0 where the clock is too fast; `gpus` are those of the runs. Without runs both are None.
    """

    regime: str
    gpu: str
    runs: int = 0
    gpus: tuple[str, ...] = ()
    median: float | None = None
    bias: float | None = None

    @property
    def error(self) -> str:
        """How far simulated times were off, such as "off by 14 % in the median, mostly too short"."""
        if self.median is None or self.bias is None:
            return "not compared with published runs"
        if self.bias < -0.5:
            return f"{1 / (1 + self.bias):.2g} times too short in the median"
        sides = {"mostly too short": -self.bias, "mostly too long": self.bias, "both ways": self.median / 2}
        return f"off by {100 * self.median:.0f} % in the median, {max(sides, key=sides.__getitem__)}"

    @property
    def short(self) -> str:
        """The regime and the error in a few words."""
        return f"{self.regime}: {self.error}"

    def __str__(self) -> str:
        """The label: one short line; `long` has the runs and the GPUs."""
        if self.median is None:
            return self.long
        host = ", within a factor of 3" if self.regime == "host assumed" else ""
        return f"simulated, {self.error} ({self.regime}{host})"

    @property
    def long(self) -> str:
        """The label with what was compared, in one long line."""
        if self.regime == OTHER_COSTS:
            return f"simulated with costs set by hand; {self.error}"
        what = _BY_HOST[self.regime][1] if self.regime in _BY_HOST else REGIMES[self.regime]
        if self.median is None:
            return f"simulated, {what}; {self.error}"
        of = "GPU" if len(self.gpus) == 1 else "GPUs"
        seen = f"{len(self.gpus)} {of}" if self.gpu in self.gpus else f"{len(self.gpus)} other {of}"
        label = f"simulated; {what}, such times were {self.error}, on {self.runs:,} published runs ({seen})"
        if self.regime != "host assumed":
            return label
        return f"{label}; {100 * host_calls.figures().bias('networks of few images'):.0f} % too long on hosts of 2025"


def regime(records: Iterable[Record], ranks: int = 1) -> str:
    """Return which regime records of the clock belong to: what decided how long they took together."""
    total = dict.fromkeys(("kernel", "copy", "message", "work", "launch"), 0)
    bounds: dict[str, int] = {}
    alone, operators, trains, computes, written = 0, 0, False, False, False
    for record in records:
        written = written or record.name.startswith("triton_")
        if record.kind in total:
            total[record.kind] += record.duration_ns
        operators += record.kind in ("kernel", "copy")
        trains = trains or record.phase == "backward" or "backward" in record.name or "_foreach" in record.name
        if record.kind == "kernel":
            bound = "recurrent" if record.name.startswith("_cudnn_rnn") else record.bound
            bounds[bound] = bounds.get(bound, 0) + record.duration_ns
            alone += record.duration_ns * (record.name in _PRODUCTS)
            computes = computes or is_library(record.name)
    busy = total["kernel"] + total["copy"]
    if ranks > 1 or total["message"]:
        return "several GPUs"
    if total["work"] > busy + total["launch"]:
        return "host work"
    if written:
        return "compiled" if busy >= total["launch"] else "compiled calls"
    if busy < max(SHORT_NS * operators, total["launch"]) or not operators:
        return "short operators"
    if total["copy"] > total["kernel"]:
        return "copies over the bus"
    special = max(("power", "odd rows", "recurrent"), key=lambda bound: bounds.get(bound, 0))
    if bounds.get(special, 0) > total["kernel"] / 2:
        return special
    if not trains and alone > _ALONE * total["kernel"]:
        return "products"
    if not (trains or computes) and bounds.get("bandwidth", 0) > _ALONE * total["kernel"]:
        return "memory traffic"
    return "training" if trains else "inference"


def of(records: Iterable[Record], machine: Machine, ranks: int = 1) -> Evidence:
    """Return the error of these records, simulated on `machine`."""
    if not machine.usual_costs:
        return of_regime(OTHER_COSTS, machine.gpu.name)
    decided = regime(records, ranks)
    if decided not in ("short operators", "compiled calls"):
        return of_regime(decided, machine.gpu.name)
    if machine.host.only_launches:
        return of_regime(OTHER_COSTS, machine.gpu.name)
    if machine.host not in hosts.ALL:
        return of_host("host measured", machine.gpu.name)
    return of_host("host assumed" if decided == "short operators" else "host assumed, compiled", machine.gpu.name)


def of_host(name: str, gpu: str = "") -> Evidence:
    """Return what is known of times that the host decides, by a name of `_BY_HOST`, on a row of `gpus`."""
    stored, situation = _stored()["hosts"], _BY_HOST[name][0]
    ratios = host_calls.figures().ratios(situation)
    if ratios:
        seen = {row.gpu for row in host_calls.figures().rows if row.regime == situation} - {"unknown"}
        error, bias = host_calls.median_error(ratios), host_calls.figures().bias(situation)
        return Evidence(name, gpu, len(ratios), tuple(sorted(seen)), error, bias)
    figure, seen = stored["figures"][situation], {row[0].rpartition(", ")[2] for row in stored["rows"]}
    return Evidence(name, gpu, figure["predictions"], tuple(sorted(seen)), figure["median"], figure["bias"])


def of_regime(name: str, gpu: str = "") -> Evidence:
    """Return what is known of the error of times of a regime on a row of `gpus`, one of `REGIMES` or of `of_host`."""
    if name in _BY_HOST:
        return of_host(name, gpu)
    figure = _stored()["figures"].get(name)
    if figure is None:
        return Evidence(name, gpu)
    return Evidence(name, gpu, figure["runs"], tuple(figure["gpus"]), figure["median"], figure["bias"])


@functools.cache
def _stored() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class HostFigure:
    """How far the clock is from published runs that the host decides, in a situation of `HOSTS`.

    `median` and `bias` are as those of `Evidence`, over so many `predictions`; nine of ten errors are `within`.
    """

    situation: str
    predictions: int
    median: float
    bias: float
    within: float


@dataclass(frozen=True, repr=False)
class HostFigures(tables.Table):
    """How far the clock is from published runs of models that the host decides, by what is known of the host."""

    figures: tuple[HostFigure, ...]

    head = ("the host", "predictions", "median error", "bias", "nine of ten within")
    right = (1, 2, 3, 4)

    def caption(self) -> str:
        return "Programs whose time the host decides, each tried with hosts chosen on others"

    def cells(self) -> list[list[str]]:
        return [
            [one.situation, f"{one.predictions:,}", f"{one.median:.1%}", f"{one.bias:+.1%}", f"{one.within:.0%}"]
            for one in self.figures
        ]  # fmt: skip

    def of(self, situation: str) -> HostFigure:
        """Return the figure of a situation of `HOSTS`. Raises KeyError for another."""
        return {one.situation: one for one in self.figures}[situation]


@dataclass(frozen=True)
class Eager:
    """The same program without torch.compile, measured and predicted, and its size: `gmacs` for an image."""

    measured_ms: float
    predicted_ms: float
    gmacs: float


@dataclass(frozen=True)
class PublishedRun:
    """One published measurement and what the clock predicts for it, in ms: of a step, or of an operator."""

    program: str
    size: int
    batch: int
    gpu: str
    mode: str  # inference or training
    format: str  # "amp" is autocast to float16, "half" a model in float16
    regime: str
    measured_ms: float
    predicted_ms: float
    fitted: bool  # a constant was chosen with it in sight
    by: str
    address: str
    date: str
    eager: Eager | None = None  # of a compiled program
    aside: bool = False  # predicted once, before anything was changed for it

    @property
    def ratio(self) -> float:
        """Predicted time over measured time; below 1 the clock promises too much."""
        return self.predicted_ms / self.measured_ms


@dataclass(frozen=True, repr=False)
class ErrorBar(tables.Table):
    """Error of the clock against published runs; shown as a table by regime."""

    runs: tuple[PublishedRun, ...] = field(repr=False)

    @property
    def of_hosts(self) -> HostFigures:
        """Error of host-bound programs, by what is known of the host."""
        return HostFigures(tuple(HostFigure(name, **found) for name, found in _stored()["hosts"]["figures"].items()))

    @property
    def of_calls(self) -> host_calls.CallFigures:
        """How far single calls are off, such as bare operators, which take their host less than those of models."""
        return host_calls.figures()

    def where(self, chosen: Callable[[PublishedRun], bool]) -> "ErrorBar":
        """Return the same for those runs that `chosen` returns true for."""
        return ErrorBar(tuple(run for run in self.runs if chosen(run)))

    @property
    def of_memory(self) -> memory_peaks.PeakFigures:
        """How far forecasts are off from published peaks of memory, by kind of program."""
        return memory_peaks.figures()

    @property
    def set_aside(self) -> "ErrorBar":
        """The runs that were predicted before anything was changed for them, which count in no other figure."""
        return ErrorBar(tuple(run for run in bar(_stored(), aside=True).runs if run.aside))

    @property
    def in_words(self) -> str:
        """The figures in sentences, as the READMEs give them."""
        figures, aside, memory, host = self.figures(), self.set_aside, self.of_memory, self.of_hosts.of("unknown")
        kinds = ("inference", "training", "compiled")
        whole, trained, compiled = (f"{100 * figures[kind]['median']:.1f} %" for kind in kinds)
        runs = sum(figures[kind]["runs"] for kind in kinds)
        return (
            f"Simulated times were compared with {runs:,} published runs of models. In the median they were off by "
            f"{whole} for inference, {trained} for training and {compiled} for compiled inference. Where an assumed "
            f"host decides, it was {100 * host.median:.0f} %. {len(aside.runs)} runs were set aside, mostly single "
            f"operators: {100 * aside.median_error:.0f} %. Forecasts of memory were off by {100 * memory.median:.1f} % "
            f"in the median of {len(memory.errors)} published peaks, also set aside."
        )

    @property
    def gains(self) -> "ErrorBar":
        """The same of the gains of compiled programs: time without compiling over time with it, in the place of ms."""
        runs = []
        for run in self.runs:
            if run.eager is not None:
                measured, predicted = run.eager.measured_ms / run.measured_ms, run.eager.predicted_ms / run.predicted_ms
                runs.append(replace(run, measured_ms=measured, predicted_ms=predicted))
        return ErrorBar(tuple(runs))

    @property
    def median_error(self) -> float:
        """The median of |predicted time / measured time - 1|."""
        return statistics.median(abs(run.ratio - 1) for run in self.runs)

    @property
    def bias(self) -> float:
        """The median of predicted time / measured time - 1: below 0 the clock is too fast."""
        return statistics.median(run.ratio for run in self.runs) - 1

    @property
    def deciles(self) -> tuple[float, float]:
        """Predicted over measured time: 10 % of the runs lie below the first ratio, 10 % above the second."""
        cuts = statistics.quantiles((run.ratio for run in self.runs), n=10, method="inclusive")
        return cuts[0], cuts[-1]

    @property
    def rank_correlation(self) -> float:
        """Spearman's: 1 where the clock puts all runs in the right order."""
        pairs = torch.tensor([(run.measured_ms, run.predicted_ms) for run in self.runs], dtype=torch.float64)
        return torch.corrcoef(pairs.argsort(0).argsort(0).double().T)[0, 1].item()

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs of the runs."""
        return tuple(sorted({run.gpu for run in self.runs}))

    def by_regime(self) -> Iterator[tuple[str, "ErrorBar"]]:
        """Yield each regime with its runs, but for those that a constant was chosen by."""
        for name in REGIMES:
            yield name, self.where(lambda run, name=name: run.regime == name and not run.fitted)

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return for each regime what its label says: `runs`, `gpus`, `median` and `bias`, of runs not fitted to."""
        result = {}
        for name, part in self.by_regime():
            if part.runs:
                median, bias = round(part.median_error, 3), round(part.bias, 3)
                result[name] = {"runs": len(part.runs), "gpus": list(part.gpus), "median": median, "bias": bias}
        return result

    head = ("regime", "runs", "GPUs", "median error", "bias", "80 % from", "to")
    right = (1, 2, 3, 4, 5, 6)

    def caption(self) -> str:
        used = sum(run.fitted for run in self.runs)
        if not used:
            return "Simulated time over published time"
        return f"Simulated time over published time; left out: {used:,} runs that set the clock's constants"

    def cells(self) -> list[list[str]]:
        rows = []
        for name, part in self.by_regime():
            if len(part.runs) > 1:
                rows.append([name, f"{len(part.runs):,}", str(len(part.gpus)), *part.cell()])
        return rows

    def cell(self) -> list[str]:
        """Return median error, bias and deciles as they stand in a table."""
        low, high = self.deciles
        return [f"{self.median_error:.1%}", f"{self.bias:+.1%}", f"{low:.2f}", f"{high:.2f}"]


def error_bar() -> ErrorBar:
    """Return published runs beside the clock's predictions; it shows itself as a table by regime."""
    return bar(_stored())


def bar(stored: dict[str, Any], aside: bool = False) -> ErrorBar:
    """Return the runs of what the file of facts holds, with those that were set aside only if `aside` is true."""
    runs = []
    for table in [table for table in stored["tables"] if aside or not table.get("aside")]:
        gpu, mode, fmt = table["gpu"], table["mode"], table["format"]
        source = table["by"], table["address"], table["date"]
        for name, size, batch, measured, predicted, regime, fitted, *rest in table["rows"]:
            eager = Eager(*rest) if rest else None
            times = measured, predicted, bool(fitted)
            known = name, size, batch, gpu, mode, fmt, regime, *times, *source, eager
            runs.append(PublishedRun(*known, table.get("aside", False)))
    return ErrorBar(tuple(runs))


def card(name: str) -> gpus.GPU:
    """Return the row of `gpus` called `name`, or a card of the published runs that is no row there."""
    cards: dict[str, dict[str, Any]] = _stored()["cards"]
    if name not in cards:
        return gpus.get(name)
    known = dict(cards[name])
    like = gpus.get(known.pop("like"))
    address: str = known.pop("address")
    return replace(like, name=name, **known, sources={**like.sources, **dict.fromkeys(known, address)})
