"""Which objects does a reader reach from some, by attributes, contents and closures?"""

import gc
import types
from collections.abc import Iterable
from typing import Any


def reached(start: Iterable[Any]) -> list[Any]:
    """Return all objects that lead on from those of `start`, without modules, classes and what functions call."""
    found: dict[int, Any] = {}
    waiting = list(start)
    while waiting:
        each = waiting.pop()
        if id(each) in found or isinstance(each, type | types.ModuleType | types.CodeType):
            continue
        found[id(each)] = each
        waiting += _held(each) if isinstance(each, types.FunctionType) else gc.get_referents(each)
    return list(found.values())


def _held(function: types.FunctionType) -> list[Any]:
    """Return what a function holds: its globals are those of its module."""
    kept = function.__closure__, function.__defaults__, function.__kwdefaults__, function.__dict__
    return [each for each in kept if each]
