"""First kernel of the installed Triton: whether it runs tells whether Triton works on this machine."""

import importlib
from typing import Any

__all__ = ["ones"]

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")


@triton.jit
def ones(out: Any, count: tl.constexpr) -> None:  # pyright: ignore
    """Write `count` ones to `out`."""
    tl.store(out + tl.arange(0, count), 1.0)
