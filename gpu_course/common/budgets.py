"""Budgets of memory and time on the simulated GPU."""

import dataclasses
import functools
import gc
import inspect
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

import simgpu
from course_utils import memory, plots
from gpu_course.checks import Case, WrongAnswer


class Floor:
    """The bytes alive on the simulated GPU before the check makes anything: a reader's own tensors do not count."""

    def __init__(self) -> None:
        gc.collect()  # what is garbage now would be freed at some moment of the check
        self.memory = simgpu.memory("sim:0")
        self.bytes = self.memory.allocated_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes alive now, above the floor."""
        return self.memory.allocated_bytes - self.bytes


@dataclasses.dataclass(frozen=True)
class Spent:
    """What a call gave and took: its value, the peak above the floor, simulated time, and the FLOPs of the device."""

    value: Any
    peak_bytes: int
    time_ms: float
    flops: int


def spend(floor: Floor, call: Callable[[], Any]) -> Spent:
    """Run `call` on the simulated GPU and return what it took, on a host that only launches."""
    torch.get_device_module("sim").synchronize()
    begin_ms, host = simgpu.clock_ms(), simgpu.settings().host
    simgpu.configure(host="kernel launch")
    try:
        with _no_collection(), floor.memory.fresh_peak(), simgpu.timeline() as seen:
            value = call()
            torch.get_device_module("sim").synchronize()
            peak_bytes = floor.memory.peak_bytes - floor.bytes
    finally:
        simgpu.configure(host=host)
    flops = sum(record.flops for record in seen.records if record.kind == "kernel")
    return Spent(value, peak_bytes, simgpu.clock_ms() - begin_ms, flops)


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
    """Fail if `spent` is over the limit, with what `again`, the same call, then shows.

    That is the line at which it runs out of memory, whose bytes are alive at the peak, the line that made most of
    them, and the names that hold some.
    """
    if spent.peak_bytes <= limit_bytes:
        return
    peak, limit = plots.bytes_text(spent.peak_bytes), plots.bytes_text(limit_bytes)

    def more() -> str:
        return "".join(f"\n  {line}" for line in (*_end(case, floor, limit_bytes, again), *_alive(again)))

    case.fail(f"the result is right, but {peak} are alive at the peak and the budget is {limit}", why, more=more)


def _end(case: Case, floor: Floor, limit_bytes: int, again: Callable[[], Any]) -> Iterator[str]:
    """Yield where `again` runs out of memory under the limit, and which names of the answer hold bytes by then."""
    answer, held = case.answer, Counter()

    @functools.wraps(answer)
    def watched(*args: Any) -> Any:
        try:
            return answer(*args)
        except torch.OutOfMemoryError as error:
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if frame.f_code.co_filename == inspect.unwrap(answer).__code__.co_filename:
                    held.update({name: _bytes_in(value) for name, value in frame.f_locals.items()})
            raise

    case.answer = watched
    try:
        with suppress(ValueError), memory.budget(max(limit_bytes - floor.used_bytes, 1), torch.device("sim", 0)):
            again()
    except WrongAnswer as wrong:
        if match := re.search(r"OutOfMemoryError.*\n  in (.*)", wrong.message):
            yield f"it runs out of memory in {match[1]}"
    finally:
        case.answer = answer
    names = [f"`{name}` {plots.bytes_text(size)}" for name, size in held.most_common(3) if size > limit_bytes // 20]
    if names:
        yield f"names that hold memory by then: {', '.join(names)}"


def _bytes_in(value: Any) -> int:
    """Return the bytes that a tensor on the simulated GPU has, or those in a list, tuple or dict."""
    if isinstance(value, list | tuple | dict):
        return sum(map(_bytes_in, value.values() if isinstance(value, dict) else value))
    return value.nbytes if isinstance(value, torch.Tensor) and simgpu.is_simulated(value.device) else 0


def _alive(again: Callable[[], Any]) -> Iterator[str]:
    """Yield whose bytes are alive at the peak of `again`, and which line made most of them."""
    with suppress(WrongAnswer):  # it ran once; where it does not a second time, the rest says enough
        measured = memory.measure(again, torch.device("sim", 0))
        owners = Counter(measured.parts.by_owner()).most_common()
        yield "alive at the peak: " + ", ".join(f"{owner} {plots.bytes_text(size)}" for owner, size in owners if size)
        lines: Counter[str] = Counter()
        for storage in measured.at_peak:
            lines[storage.made] += storage.bytes if storage.made else 0
        made, size = max(lines.items(), key=lambda entry: entry[1])
        if size:
            yield f"{plots.bytes_text(size)} of it were made in {made}"
