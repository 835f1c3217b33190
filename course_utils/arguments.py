"""Validation of arguments, with messages that say what a function takes."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def device(argument: str, given: Any) -> torch.device:
    """Return `given` as a device. Raises TypeError or ValueError that names `argument`; the device need not exist."""
    import torch

    if not isinstance(given, torch.device | str):
        raise TypeError(f"{argument} is {given!r}, it must be a torch.device or text such as 'cpu' or 'cuda:0'")
    try:
        return torch.device(given)
    except RuntimeError:
        raise ValueError(
            f"{argument} is {given!r}, which names no device that PyTorch knows in this process; "
            "it may be text such as 'cpu' or 'cuda:0', or a torch.device"
        ) from None


def number(argument: str, given: Any, *, finite: bool = True, least: float | None = None) -> float:
    """Return a number, by default a finite one; tensors and NumPy scalars with one element count as numbers."""
    try:
        if isinstance(given, bool | str | bytes | bytearray):
            raise TypeError
        result = float(given)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"{argument} must be a number, not {given!r}") from None
    if finite and not math.isfinite(result):
        raise ValueError(f"{argument} must be a finite number, not {given!r}")
    if least is not None and result < least:
        raise ValueError(f"{argument} must be at least {least}, not {given!r}")
    return result


def positive(argument: str, given: Any) -> float:
    """Return a finite number above 0."""
    result = number(argument, given)
    if result <= 0:
        raise ValueError(f"{argument} must be a number above 0, not {given!r}")
    return result


def whole(argument: str, given: Any, *, least: int = 1) -> int:
    """Return a whole number from `least`."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{argument} must be a whole number, not {given!r}")
    if operator.index(given) < least:
        raise ValueError(f"{argument} must be at least {least}, not {given!r}")
    return operator.index(given)


def numbers(argument: str, given: Any) -> list[float]:
    """Return the finite numbers in a list, tuple, range, array or tensor of one dimension."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable) or not hasattr(given, "__len__"):
        raise TypeError(f"{argument} must be a list of numbers, not {given!r}")
    return [number(f"{argument}[{place}]", one) for place, one in enumerate(given)]


def one_of(argument: str, given: Any, known: Iterable[Any]) -> Any:
    """Return `given`, which must be one of `known`."""
    if given not in (values := tuple(known)):
        raise ValueError(f"{argument} is {given!r}, it may be one of: {', '.join(map(str, values))}")
    return given


def text(argument: str, given: Any) -> str:
    """Return `given`, which must be text."""
    if not isinstance(given, str):
        raise TypeError(f"{argument} must be text, not {given!r}")
    return given


_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def size_bytes(argument: str, given: Any) -> int:
    """Return the bytes that `given` means: a positive whole number, or text such as "64 MiB"."""
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    match = re.fullmatch(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})\s*", given) if isinstance(given, str) else None
    result = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not result:
        raise ValueError(f"{argument} must be a positive number of bytes or text such as '64 MiB', not {given!r}")
    return result
