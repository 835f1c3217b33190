"""Is what an answer returned a number, and near which float is it?"""

from __future__ import annotations

import math
import numbers
from typing import Any

__all__ = ["as_float", "is_number"]


def is_number(got: Any) -> bool:
    """Return whether `got` is a real number, of Python or NumPy, and no bool."""
    return isinstance(got, numbers.Real) and not isinstance(got, bool)


def as_float(got: Any) -> float:
    """Return `got` as a float, infinite where none is so large, NaN where it is no number."""
    try:
        return float(got) if is_number(got) else math.nan
    except OverflowError:
        return math.inf
