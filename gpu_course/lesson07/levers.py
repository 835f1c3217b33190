"""Savings and costs of a changed training step, as multiples of the plain step.

levers = Levers(DEVICE)
levers.add("naive", naive_step)  # the first row is the one that the others are compared with
half = levers.add("8 rows", half_step)
levers.show("8 rows")
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.benchmark import Timer

import simgpu
from course_utils import counting, memory
from gpu_course.common import events

__all__ = ["Levers", "Row", "label_of", "time_ms"]

MIB = 2**20
OWNERS = ("weights", "gradients", "optimizer", "activations", "temporaries")


def label_of(device: torch.device) -> str:
    """Return the word that stands beside what was measured on `device`."""
    if simgpu.is_simulated(device):
        return "simulated"
    return "live on the CPU" if device.type == "cpu" else "live"


def time_ms(step: Callable[[], Any], device: torch.device) -> float:
    """Return the median milliseconds of a call of `step`, by the clock of `device`."""
    if device.type == "cpu":
        return Timer("step()", globals={"step": step}).blocked_autorange().median * 1e3
    repeats = 1 if simgpu.is_simulated(device) else 5  # simulated times repeat exactly
    return events.median_ms(step, device, repeats=repeats)


@dataclass(frozen=True)
class Row:
    """What was measured of one step."""

    measured: memory.Measured
    flops: int
    milliseconds: float


class Levers:
    """A table of training steps: whose bytes are alive at the peak, and the cost in FLOPs and time.

    The first row that is added is the one that all others are compared with.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rows: dict[str, Row] = {}

    def add(self, name: str, step: Callable[[], Any]) -> memory.Measured:
        """Count, measure and time `step`, note it as the row `name`, and return what `memory.measure` says of it."""
        with counting.count() as counts:
            measured = memory.measure(step, self.device)
        self.rows[name] = Row(measured, counts.flops, time_ms(step, self.device))
        return measured

    def times(self, name: str) -> float:
        """Return how many times as long as the first row the row `name` takes."""
        return self.rows[name].milliseconds / self._first.milliseconds

    def show(self, *names: str) -> None:
        """Print the first row and those with these names: MiB at the peak by owner; FLOPs and time as multiples."""
        heads = [f" {head:>6}" for head in (*OWNERS, "peak")]  # a space and at least six letters
        print(f"MiB at the peak, {label_of(self.device)}; FLOPs and time as multiples of the first row")
        print(f"{'':16}" + "".join(heads) + "    % FLOPs  time")
        for name in (next(iter(self.rows)), *names):
            row = self.rows[name]
            sizes = [*row.measured.parts.by_owner().values(), row.measured.peak_bytes]
            weights, *cells = [f"{size / MIB:{len(head)}.2f}" for size, head in zip(sizes, heads, strict=True)]
            print(f"{name} {weights.strip():>{23 - len(name)}}" + "".join(cells), end="")
            share = row.measured.peak_bytes / self._first.measured.peak_bytes
            print(f"{share:5.0%}{row.flops / self._first.flops:5.2f}x{self.times(name):5.2f}x")

    @property
    def _first(self) -> Row:
        return next(iter(self.rows.values()))
