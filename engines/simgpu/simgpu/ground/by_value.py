"""Writes functions as bytes that another process reads, also those that it could not import."""

import io
import types
from collections.abc import Callable
from typing import Any

import cloudpickle

__all__ = ["dumps"]


def dumps(value: Any) -> bytes:
    """Return `value` pickled, functions typed in a cell by value; `pickle.loads` reads it.

    Each function keeps the name of its file, which cloudpickle leaves out since 3.1.3, and messages show its lines.
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            return _code, (*self.dispatch_table[types.CodeType](obj), obj.co_filename)
        return super().reducer_override(obj)


def _code(make: Callable[..., types.CodeType], parts: tuple[Any, ...], file: str) -> types.CodeType:
    return make(*parts).replace(co_filename=file)
