"""Limits that a test sets on a run, such as "idle>30%"."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from math import isfinite

from simgpu.ground import arguments
from simgpu.ground.units import bytes_text, seconds_text
from simgpu.reports.report import Values
from simgpu.reports.rules import RULES
from simgpu.reports.rules.memory_grows import MemoryGrows
from simgpu.reports.words import ENOUGH_TURNS

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_FORM = re.compile(r"\s*(\w+)\s*([<>])\s*(.+?)\s*")


@dataclass(frozen=True)
class Limit:
    """What makes a run fail: a value of its report that is above, or below, a bound."""

    name: str
    above: bool
    bound: float

    def broken(self, report: Values) -> str:
        """Return a sentence that says how far a report is beyond the limit, "" where it is within."""
        if self.name in RULES:
            named = [one for one in report.suspects if one.code == self.name]
            if not named and self.name == MemoryGrows.code and report.growth_turns < ENOUGH_TURNS:
                few = f"{report.growth_turns} steps or calls of a model, {ENOUGH_TURNS} are needed"
                return f"{self.name}: not known, since it was sought over {few}"
            return f"{self.name}: {named[0]}" if named else ""
        measure, _, shown = _MEASURES[self.name]
        value = measure(report)
        if not (value > self.bound if self.above else value < self.bound):
            return ""
        side = "above" if self.above else "below"
        return f"{self.name} is {shown(value)}, {side} the limit of {shown(self.bound)}"


def limit(text: str) -> Limit:
    """Return the limit that a text names, such as "idle>30%", "peak>12 GiB", or the code of a remark.

    Raises ValueError for another one.
    """
    if text.strip() in RULES:
        return Limit(text.strip(), True, 0)
    match = _FORM.fullmatch(text)
    if match is None or match[1] not in _MEASURES:
        code = next(iter(get_close_matches(text, RULES, 1)), MemoryGrows.code)
        raise ValueError(
            f"a limit is a name ({', '.join(_MEASURES)}), > or <, and a bound, such as 'idle>30%', or the code of a "
            f"remark, such as {code!r}, not {text!r}"
        )
    return Limit(match[1], match[2] == ">", _MEASURES[match[1]][1](match[3]))


def _share(text: str) -> float:
    share = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if share > 1:
        raise ValueError(f"the bound of a share must be 0 to 1, or have a %, not {text!r}")
    return share


def _number(text: str) -> float:
    with suppress(ValueError):
        if isfinite(number := float(text)):
            return number
    raise ValueError(f"the bound of a limit must be a number, not {text!r}")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([\d.eE+-]+)\s*(s|ms|us|µs)", text)
    if match is None:
        raise ValueError(f"the bound of a time must have a unit, such as '40ms', not {text!r}")
    return _number(match[1]) * _SECONDS[match[2]]


_bytes = partial(arguments.size_bytes, "the bound of a size")
_percent, _plain = "{:.1%}".format, "{:,.3g}".format
_MEASURES: dict[str, tuple[Callable[[Values], float], Callable[[str], float], Callable[[float], str]]] = {
    "idle": (lambda report: report.idle, _share, _percent),
    "peak": (lambda report: report.peak, _bytes, bytes_text),
    "step": (lambda report: report.step_time, _seconds, seconds_text),
    "waits": (lambda report: report.wait_count, _number, _plain),
    "copies": (lambda report: sum(row.count for row in report.copies), _number, _plain),
    "launches": (lambda report: sum(row.count for row in report.launches), _number, _plain),
    "errors": (lambda report: len(report.errors), _number, _plain),
    "remarks": (lambda report: len(report.suspects), _number, _plain),
}
