"""Validation of arguments, with messages that say what a function takes."""

from __future__ import annotations

import math
import operator
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
