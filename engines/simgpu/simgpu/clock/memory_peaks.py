"""Published peaks of memory beside what forecasts predict; `python -m benchmarks.memory` makes the file."""

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simgpu.ground import tables

FILE = Path(__file__).with_suffix(".csv")
_KINDS = {  # of programs, by the first word of their names; all others are losses
    "layer_norm": "norms", "group_norm": "norms", "rms_norm": "norms", "gated": "feed-forward layers",
    "embedding": "embeddings", "softmax": "softmax", "attention": "attention",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class PeakFigures(tables.Table):
    """How far forecasts of memory are off: (kind, predicted / measured - 1) of the peaks that were set aside.

    `published` counts the others, too.
    """

    errors: tuple[tuple[str, float], ...]
    published: int

    head = ("programs", "peaks", "median error", "bias", "nine of ten within", "worst")
    right = (1, 2, 3, 4, 5)

    @property
    def median(self) -> float:
        return statistics.median(abs(error) for _, error in self.errors)

    def caption(self) -> str:
        return f"Forecast memory over published memory, of {len(self.errors)} peaks set aside among {self.published}"

    def cells(self) -> list[list[str]]:
        kinds = dict.fromkeys(kind for kind, _ in self.errors)
        parts = [(kind, [error for of, error in self.errors if of == kind]) for kind in kinds]
        return [_cells(kind, errors) for kind, errors in (*parts, ("all", [error for _, error in self.errors]))]


def _cells(kind: str, errors: Sequence[float]) -> list[str]:
    sizes = sorted(map(abs, errors))
    said = f"{statistics.median(sizes):.1%}", f"{statistics.median(errors):+.1%}"
    return [kind, str(len(errors)), *said, f"{sizes[math.ceil(0.9 * len(sizes)) - 1]:.0%}", f"{max(sizes):.0%}"]


def figures() -> PeakFigures:
    """Return the figures of memory_peaks.csv."""
    rows = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))
    errors = [
        (_KINDS.get(row["program"].split()[0], "losses"), float(row["predicted_mib"]) / float(row["measured_mib"]) - 1)
        for row in rows if row["aside"] == "1"
    ]  # fmt: skip
    return PeakFigures(tuple(errors), len(rows))
