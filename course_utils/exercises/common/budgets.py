"""How much memory and time did a call take on the simulated GPU, and what is said when that is over a budget?"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from course_utils import memory, plots, simulator
from course_utils.checks import Case, WrongAnswer
from course_utils.memory import fresh_peak

__all__ = ["Floor", "Spent", "over_budget", "spend"]


class Floor:
    """The bytes alive on the simulated GPU before the check makes anything: a reader's own tensors do not count."""

    def __init__(self) -> None:
        gc.collect()  # what is garbage now would be freed at some moment of the check
        self.gpu = simulator.world().gpus[0]
        self.bytes = self.gpu.allocated_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes alive now, above the floor."""
        return self.gpu.allocated_bytes - self.bytes


@dataclass(frozen=True)
class Spent:
    """What a call gave and took: its value, the peak above the floor, simulated time, and the FLOPs of the device."""

    value: Any
    peak_bytes: int
    time_ms: float
    flops: int


def spend(floor: Floor, call: Callable[[], Any]) -> Spent:
    """Run `call` on the simulated GPU and return what it took."""
    torch.sim.synchronize()
    begin_ms = simulator.clock_ms()
    with _no_collection(), fresh_peak(floor.gpu), simulator.timeline() as seen:
        value = call()
        torch.sim.synchronize()
        peak_bytes = floor.gpu.peak_bytes - floor.bytes
    flops = sum(record.flops for record in seen.records if record.kind == "kernel")
    return Spent(value, peak_bytes, simulator.clock_ms() - begin_ms, flops)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage inside: what others left behind would otherwise be freed at some moment, and change sizes."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def over_budget(
    case: Case, floor: Floor, spent: Spent, limit_bytes: int, again: Callable[[], Any], why: str = ""
) -> None:
    """Fail if `spent` is over the limit, with the line at which `again`, the same call, then runs out of memory."""
    if spent.peak_bytes <= limit_bytes:
        return
    line = ""
    with suppress(ValueError):
        try:
            with memory.budget(max(limit_bytes - floor.used_bytes, 1), torch.device("sim", 0)):
                again()
        except WrongAnswer as wrong:
            found = re.search(r"OutOfMemoryError.*\n  in (.*)", wrong.message)
            line = f"\n  it runs out of memory in {found[1]}" if found else ""
    peak, limit = plots.bytes_text(spent.peak_bytes), plots.bytes_text(limit_bytes)
    case.fail(f"the result is right, but {peak} are alive at the peak and the budget is {limit}{line}", why)
