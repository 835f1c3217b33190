"""Where in a nested batch is a tensor on another device, or a container of another type?"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["changed_type", "left_behind"]


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of name and entry of a container, none for anything else."""
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def changed_type(got: Any, batch: Any) -> str:
    """Return the type of a container of `batch` that is of another type in `got`, or nothing."""
    if isinstance(batch, dict | list | tuple) and isinstance(got, dict | list | tuple) and type(got) is not type(batch):
        return "named tuple" if hasattr(batch, "_fields") else type(batch).__name__
    pairs = zip(_entries(got), _entries(batch), strict=False)
    return next((found for (_, one), (_, other) in pairs if (found := changed_type(one, other))), "")


def left_behind(got: Any, device: torch.device, name: str) -> str:
    """Return where in `got` a tensor is not on `device`, such as "the result['x'][0]", or nothing."""
    if isinstance(got, torch.Tensor):
        return "" if got.device == device else name
    places = (left_behind(value, device, f"{name}[{key!r}]") for key, value in _entries(got))
    return next((place for place in places if place), "")
