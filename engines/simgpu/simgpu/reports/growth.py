"""Does memory grow from step to step, and which value keeps it alive?"""

import gc
import sys
from collections import Counter
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from simgpu import places
from simgpu.reports.holdings import MADE, Held, Holdings
from simgpu.reports.lines import Line

_LOOKED_AFTER = 4  # steps: the first ones make the optimizer's state, and caches


@dataclass(frozen=True)
class Growth(Line):
    """Memory that each step adds: `line` made the value that keeps it, `held_by` is what refers to that value."""

    bytes_per_step: int = 0
    held_by: str = ""  # such as "losses, a list of 12"; "" where that was not found


class GrowthWatch:
    """Looks at the ends of steps 4, 8, 16 … whether memory grew in each of the last steps."""

    def __init__(self, holdings: Holdings) -> None:
        self.found: list[Growth] = []
        self._holdings = holdings
        self._ends: list[int] = []  # bytes alive at the last ends of steps
        self._next = _LOOKED_AFTER

    def step(self, number: int) -> None:
        """Step `number`, from 1, has ended."""
        self._ends = [*self._ends[-2:], self._holdings.now_bytes()]
        if number < self._next:
            return
        self._next = 2 * number
        first, second, third = self._ends
        grows = first < second < third
        self.found = self._look((third - first) // 2) if grows else []

    def _look(self, bytes_per_step: int) -> list[Growth]:
        """Return the lines that made what keeps memory of earlier steps alive, first that of most values."""
        kept = _kept_with_graphs(self._holdings)
        if kept:
            lines = Counter(held.line for _, held in kept)
        else:
            lines = Counter()
            for held in self._holdings.grown(since=2):
                lines[held.line] += held.nbytes
        last = {held.line: tensor for tensor, held in kept}
        return [
            Growth(*Line.of(line).parts, bytes_per_step, _holder(last.get(line))) for line, _ in lines.most_common(3)
        ]


def _kept_with_graphs(holdings: Holdings) -> list[tuple[torch.Tensor, Held]]:
    """Return the tensors of earlier steps that Python still holds and that have a graph, the newest last."""
    found = []
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and not thing.is_leaf:
            held = holdings.held(thing)
            if held is not None and held.step < holdings.step and held.owner in MADE:
                found.append((thing, held))
    return sorted(found, key=lambda pair: pair[1].born)


def _holder(tensor: torch.Tensor | None) -> str:
    """Return which of the program's variables refers to a tensor, or to a list or dict of it; "" if none does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and tensor is not None:
        if places.is_readers(frame.f_code.co_filename, frame.f_code.co_name):
            for name, value in list(frame.f_locals.items()):
                text = _holds(name, value, tensor)
                if text:
                    return text
        frame = frame.f_back
    return ""


def _holds(name: str, value: Any, tensor: torch.Tensor) -> str:
    if value is tensor:
        return name
    if isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        if any(item is tensor for item in items):
            return f"{name}, a {type(value).__name__} of {len(value):,}"
    return ""
