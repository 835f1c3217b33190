"""How wrong are simulated times? Predicted beside measured, for models whose speed others have published.

    timing.error_bar()

The facts lie in published.json; `python -m benchmarks.published` makes the predictions in it.
"""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from course_utils import tables

FILE = Path(__file__).with_name("published.json")


@dataclass(frozen=True)
class Run:
    """One published measurement: images a second of a model on a GPU, and what the simulated clock predicts."""

    model: str
    gpu: str
    training: bool
    fitted: bool  # the constants were chosen with it in sight
    batch: int
    measured: float
    predicted: float

    @property
    def ratio(self) -> float:
        """Predicted time over measured time; below 1 the clock promises too much."""
        return self.measured / self.predicted


@dataclass(frozen=True)
class ErrorBar:
    """How far the clock is from published measurements, each in images a second, and from where they are."""

    runs: tuple[Run, ...] = field(repr=False)
    source: str

    def where(self, chosen: Callable[[Run], bool]) -> "ErrorBar":
        """Return the same for those runs that `chosen` returns true for."""
        return ErrorBar(tuple(run for run in self.runs if chosen(run)), self.source)

    @property
    def median_error(self) -> float:
        """The median of |predicted time / measured time - 1|."""
        return statistics.median(abs(run.ratio - 1) for run in self.runs)

    @property
    def deciles(self) -> tuple[float, float]:
        """Predicted over measured time: 10 % of the runs lie below the first ratio, 10 % above the second."""
        found = statistics.quantiles((run.ratio for run in self.runs), n=10, method="inclusive")
        return found[0], found[-1]

    @property
    def rank_correlation(self) -> float:
        """Spearman's: 1 where the clock puts all runs in the right order."""
        pairs = torch.tensor([(run.measured, run.predicted) for run in self.runs], dtype=torch.float64)
        return torch.corrcoef(pairs.argsort(0).argsort(0).double().T)[0, 1].item()

    def _rows(self) -> list[list[str]]:
        groups = {f"{gpu}, inference": lambda run, gpu=gpu: run.gpu == gpu and not run.training for gpu in self._gpus()}
        groups |= {"all inference": lambda run: not run.training}
        groups |= {"inference, used for the fit": lambda run: not run.training and run.fitted}
        fit = {run.gpu for run in self.runs if run.fitted}
        groups["inference, others of that GPU"] = lambda run: run.gpu in fit and not run.training and not run.fitted
        for gpu in dict.fromkeys(run.gpu for run in self.runs if run.training):
            groups[f"{gpu}, training"] = lambda run, gpu=gpu: run.gpu == gpu and run.training
        rows = []
        for name, chosen in groups.items():
            part = self.where(chosen)
            if len(part.runs) > 2:
                low, high = part.deciles
                error, rank = f"{part.median_error:.1%}", f"{part.rank_correlation:.3f}"
                rows.append([name, str(len(part.runs)), error, f"{low:.2f}", f"{high:.2f}", rank])
        return rows

    def _gpus(self) -> list[str]:
        return list(dict.fromkeys(run.gpu for run in self.runs))

    _HEAD = ("runs", "number", "median error", "10 % below", "10 % above", "rank corr.")

    def __str__(self) -> str:
        table = tables.text(self._rows(), self._HEAD, right=(1, 2, 3, 4, 5))
        return f"Simulated time over published time. Measured:\n{self.source}\n{table}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        right = dict.fromkeys((1, 2, 3, 4, 5), "style='text-align: right'")
        caption = f"Simulated time over published time. Measured: {self.source}"
        return tables.to_html(self._rows(), self._HEAD, caption=caption, attributes=right)


def error_bar(stored: dict[str, Any] | None = None) -> ErrorBar:
    """Return published measurements beside the simulated clock's predictions; `plots.errors` draws it.

    `stored` is what the file of facts holds, read unless given.
    """
    stored = json.loads(FILE.read_text(encoding="utf-8")) if stored is None else stored
    runs = []
    for mode in ("inference", "training"):
        for model, _, fitted, *cells in stored[mode]:
            for gpu, cell in zip(stored["gpus"][mode], cells, strict=True):
                batch, measured, predicted = cell
                seen = bool(fitted) and gpu == stored["gpus"]["fitted"]
                runs.append(Run(model, gpu, mode == "training", seen, batch, measured, predicted))
    return ErrorBar(tuple(runs), stored["source"])
