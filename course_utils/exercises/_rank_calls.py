"""What happens on one rank when the reader's answer is called? A small module: every rank imports it anew."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from course_utils import counting
from course_utils._compare import difference

__all__ = ["Call", "Imported", "nothing", "on_rank"]


@dataclass(frozen=True)
class Call:
    """One call of the answer on one rank: what it returned, whether it changed its arguments, and what it did."""

    value: Any
    modified: bool
    counts: counting.Counts


class Imported:
    """Imports a module when it arrives at a rank, which is before the time of the rank begins."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple:
        return importlib.import_module, (self.name,)


def nothing(ready: object) -> None:
    """Do nothing, on a rank that has imported what `ready` is."""


def on_rank(ready: object, program: Callable, answer: Callable, args: tuple) -> Any:
    """Run the program of a check, which calls the answer."""
    return program(_Caller(answer), *args)


class _Caller:
    """Calls the answer and notes what it did; no rank begins a call before all have ended the one before."""

    def __init__(self, answer: Callable) -> None:
        self.answer, self.called, self.group = answer, False, None

    def __call__(self, *args: Any, modifies: bool = False) -> Call:
        if self.called:  # in a group of its own: messages that the answer left behind do not meet the barrier's
            self.group = self.group or dist.new_group()
            dist.barrier(self.group)
        self.called = True
        before = None if modifies else copy.deepcopy(args)
        with counting.count() as counts:
            value = self.answer(*args)
        modified = before is not None and bool(difference(args, before, copied=True))
        return Call(value, modified, counts)
