"""Which settings of Python and of processes can code leave changed, and how is each one put back?"""

import contextlib
import gc
import logging
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["SETTINGS", "UNKNOWN"]

UNKNOWN = object()  # there is nothing to put back


@dataclass
class _Filters:
    """Filters of warnings: those of whole kinds, and all; a library that is imported adds one for its own warnings."""

    wide: list[tuple]
    every: list[tuple] = field(compare=False)


def _filters() -> _Filters:
    every = list(warnings.filters)
    return _Filters([f for f in every if f[1] is f[3] is None and f[2].__module__ == "builtins"], every)


def _set_filters(before: _Filters) -> None:
    warnings.resetwarnings()  # says that the filters change, too
    warnings.filters.extend(before.every)


def _logging() -> tuple[int, int, list[logging.Handler]]:
    return logging.root.level, logging.root.manager.disable, list(logging.root.handlers)


def _set_logging(before: tuple[int, int, list[logging.Handler]]) -> None:
    logging.root.setLevel(before[0])
    logging.disable(before[1])
    logging.root.handlers[:] = before[2]


def _garbage() -> tuple[bool, tuple[int, ...]]:
    return gc.isenabled(), gc.get_threshold()


def _set_garbage(before: tuple[bool, tuple[int, ...]]) -> None:
    (gc.enable if before[0] else gc.disable)()
    gc.set_threshold(*before[1])


def _processes() -> tuple[str, str]:
    """Return how processes are started, which is open until the first one, and how they share tensors."""
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return method, torch.multiprocessing.get_sharing_strategy()


def _set_processes(before: tuple[str, str]) -> None:
    multiprocessing.set_start_method(before[0], force=True)
    torch.multiprocessing.set_sharing_strategy(before[1])


def _directory() -> Any:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return UNKNOWN


def _set_directory(before: str) -> None:
    with contextlib.suppress(OSError):
        os.chdir(before)


# name in messages: (get, set)
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the filters of warnings": (_filters, _set_filters),
    "the settings of logging": (_logging, _set_logging),
    "the garbage collector": (_garbage, _set_garbage),
    "how processes are started": (_processes, _set_processes),
    "the working directory": (_directory, _set_directory),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
}
