"""Differences between two values in words, and values as messages show them."""

import inspect
import math
import numbers
import reprlib
from typing import Any, cast

import numpy as np
import torch

_LIMIT = 240  # characters of a value that a message shows
_EXACT = (bool, str, bytes, torch.device, torch.dtype, type(None))


def difference(
    got: Any, expected: Any, *, rtol: float = 0.0, atol: float = 0.0, where: str = "the result", copied: bool = False
) -> str:
    """Return in words how `got` differs from `expected`, or nothing: tensors, arrays, modules, containers, values.

    `copied` says that `expected` is a deep copy: objects that compare by identity alone are then not looked into.
    Elsewhere they raise TypeError, because a comparison that cannot fail would accept every answer.
    """
    if got is expected and not isinstance(got, list | tuple | dict):
        return ""
    if got is None or (inspect.isgenerator(got) and not inspect.isgenerator(expected)):
        return _no_value(got, expected, where)
    rest = {"rtol": rtol, "atol": atol, "copied": copied}
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(got, expected, where, rtol, atol)
    if isinstance(expected, numbers.Number) and not isinstance(expected, bool):
        return _number_difference(got, expected, where, rtol, atol)
    if isinstance(got, np.generic) and not copied and type(got.item()) is type(expected):
        plain = type(expected).__name__
        advice = f"{where} is NumPy's {_name(got)}, expected Python's {plain}: wrap it in {plain}(...)"
        return advice if got == expected else f"{where} is {shown(got)}, expected {shown(expected)}"
    if copied and _of_a_class_made_anew(got, expected):
        return difference(_within(got), _within(expected), where=where, **rest)
    plain = type(expected) in (dict, list, tuple) and isinstance(got, type(expected))  # a NamedTuple is a tuple, too
    sets = isinstance(expected, set | frozenset) and isinstance(got, set | frozenset)
    if type(got) is not type(expected) and not plain and not sets:
        return f"{where} is of type {_named(got)}, expected {_named(expected)}"
    if isinstance(expected, _EXACT):
        return "" if got == expected else f"{where} is {shown(got)}, expected {shown(expected)}"
    if isinstance(expected, np.ndarray):
        return _array_difference(cast(Any, got), expected, where, rtol, atol)
    if isinstance(expected, torch.nn.Module):
        return difference(dict(cast(Any, got).state_dict()), dict(expected.state_dict()), where=where, **rest)
    if isinstance(expected, dict | list | tuple):
        return _container_difference(got, expected, where, rest)
    return _other_difference(got, expected, where, copied)


def _no_value(got: Any, expected: Any, where: str) -> str:
    if got is None:
        return f"{where} is None" + (f", expected {shown(expected)}" if "[" in where else ": is a return missing?")
    wanted = "a tensor" if isinstance(expected, torch.Tensor) else _named(expected)
    return f"{where} is a generator, expected {wanted}: return the values themselves, `yield` gives none yet"


def _of_a_class_made_anew(got: Any, expected: Any) -> bool:
    """Return whether two classes come from two calls of one function that defines a class."""
    mine, first = type(got), type(expected)
    return mine is not first and (mine.__module__, mine.__qualname__) == (first.__module__, first.__qualname__)


def _within(value: Any) -> Any:
    return tuple(value) if isinstance(value, tuple) else getattr(value, "__dict__", None)


def _named(value: Any) -> str:
    """Return the type's name; NumPy's scalars are distinguished from Python's."""
    return f"NumPy's {_name(value)}" if isinstance(value, np.generic) else type(value).__name__


def _name(scalar: np.generic) -> str:
    return "bool_" if isinstance(scalar, np.bool_) else type(scalar).__name__  # NumPy 2 calls it bool


def _number_difference(got: Any, expected: Any, where: str, rtol: float, atol: float) -> str:
    numpys = type(got).__module__ == "numpy" and isinstance(got, numbers.Number)
    imaginary = isinstance(expected, numbers.Real) and not isinstance(got, numbers.Real)
    if isinstance(got, bool) or imaginary or not (type(got) in (int, float, complex) or numpys):
        return f"{where} is of type {_named(got)}, expected {_named(expected)}"
    if type(expected) is float and isinstance(got, np.floating) and not isinstance(got, float):
        return f"{where} is NumPy's {_name(got)}, expected Python's float: wrap it in float(...)"
    try:
        exact = isinstance(expected, numbers.Integral)  # a count that is nearly right is wrong
        near = 0.0 if exact else atol + rtol * abs(cast(Any, expected))
        away: Any = got
        close = got == expected or (near < math.inf and abs(away - expected) <= near)  # near inf all would be
    except OverflowError:  # an integer too large for a float
        close = False
    if close and _float_for_int(got, expected):
        return f"{where} is {got}, a float, expected the int {expected}: divide with //, or wrap it in int(...)"
    both_nan = got != got and expected != expected
    return "" if close or both_nan else f"{where} is {shown(got)}, expected {shown(expected)}"


def _float_for_int(got: Any, expected: Any) -> bool:
    """Return whether `got` is a float where an int is expected, as for indices and sizes."""
    return isinstance(expected, numbers.Integral) and isinstance(got, float | np.floating)


def whole_numbers(value: Any, count: int) -> bool:
    """Return whether `value` is a tuple of `count` whole numbers, Python's or NumPy's; True and False are none."""
    numbers_there = isinstance(value, tuple) and len(value) == count
    return numbers_there and all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in value)


def _array_difference(got: np.ndarray, expected: np.ndarray, where: str, rtol: float, atol: float) -> str:
    for name in ("shape", "dtype"):
        if getattr(got, name) != getattr(expected, name):
            return f"{where} has {name} {getattr(got, name)}, expected {getattr(expected, name)}"
    numeric = np.issubdtype(expected.dtype, np.number)
    same = np.allclose(got, expected, rtol, atol, equal_nan=True) if numeric else np.array_equal(got, expected)
    return "" if same else f"{where} has other values"


def _container_difference(got: Any, expected: Any, where: str, rest: dict[str, Any]) -> str:
    if len(got) != len(expected):
        return f"{where} has {len(got)} {'entry' if len(got) == 1 else 'entries'}, expected {len(expected)}"
    if isinstance(expected, dict) and got.keys() != expected.keys():
        return f"{where} has the keys {shown(list(got))}, expected {shown(list(expected))}"
    names = list(expected) if isinstance(expected, dict) else range(len(expected))
    problems = (difference(got[name], expected[name], where=f"{where}[{name!r}]", **rest) for name in names)
    return next((problem for problem in problems if problem), "")


def where_they_differ(got: Any, expected: Any, *, rtol: float, atol: float) -> tuple[Any, Any]:
    """Return both values for a message; of tables of tensors, such as state dicts, one entry that differs."""
    tables = isinstance(got, dict) and isinstance(expected, dict) and got.keys() == expected.keys()
    if not tables or not any(isinstance(value, torch.Tensor) for value in expected.values()):
        return got, expected
    names = (name for name in expected if difference(got[name], expected[name], rtol=rtol, atol=atol))
    name = next(names, None)
    return (got, expected) if name is None else ({name: got[name]}, {name: expected[name]})


def _other_difference(got: Any, expected: Any, where: str, copied: bool) -> str:
    if type(expected).__eq__ is object.__eq__:
        if copied:
            return ""
        raise TypeError(f"{type(expected).__name__} objects compare by identity: compare what matters in them")
    try:
        return "" if bool(got == expected) else f"{where} is {shown(got)}, expected {shown(expected)}"
    except Exception:
        if copied:
            return ""
        raise


def _tensor_difference(got: Any, expected: torch.Tensor, where: str, rtol: float, atol: float) -> str:
    foreign = type(got).__module__.partition(".")[0] not in ("torch", "simgpu")
    if not isinstance(got, torch.Tensor) or (foreign and type(got) is not type(expected)):
        return f"{where} is of type {_named(got)}, expected a tensor"
    for name, verb in (("device", "is on"), ("shape", "has shape"), ("dtype", "has dtype"), ("layout", "has layout")):
        mine, right = getattr(got, name), getattr(expected, name)
        if mine != right:
            as_shown = tuple if name == "shape" else str
            on = "on " if name == "device" else ""
            return f"{where} {verb} {as_shown(mine)}, expected {on}{as_shown(right)}"
    if expected.is_meta:  # it has no values
        return ""
    mine, right = got.detach().cpu(), expected.detach().cpu()
    if mine.layout != torch.strided:
        mine, right = mine.to_dense(), right.to_dense()
    # not torch.testing.assert_close: its first use imports torch's distributed tensors, for a second, in every rank
    if torch.equal(mine, right) or torch.allclose(mine, right, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    apart = (mine.to(torch.complex128) - right.to(torch.complex128)).abs().max().item()
    far = f", up to {apart:.2g} apart" if math.isfinite(apart) else ", and nan or inf among them"
    unseen = far if shown(mine) == shown(right) else ""  # a message would show the same twice
    return f"{where} has other values{unseen}"


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _LIMIT
        self.maxdict = self.maxlist = self.maxtuple = 6


_SHORT = _Short()


def outline(value: Any) -> str:
    """Outline a long value for a message: long parts of a container by kind."""
    if isinstance(value, dict):
        parts, (begin, end) = [f"{key!r}: {_kind(part)}" for key, part in list(value.items())[:8]], "{}"
    elif isinstance(value, list | tuple):
        parts, (begin, end) = [_kind(part) for part in value[:8]], "()" if isinstance(value, tuple) else "[]"
    else:
        return _cut(shown(value))
    return begin + ", ".join(parts + ["…"] * (len(value) > 8)) + end


def _kind(part: Any) -> str:
    """Return a part of a container in at most 60 characters: a container by its type and length."""
    text = shown(part)
    if len(text) <= 60:
        return text
    return f"<{type(part).__name__} of {len(part)}>" if isinstance(part, dict | list | tuple) else f"{text[:59]}…"


def _cut(text: str) -> str:
    return text if len(text) <= _LIMIT else text[: _LIMIT - 1] + "…"


def shown(value: Any) -> str:
    """Return `value` as a message shows it: small tensors whole, large ones by shape, dtype and device."""
    if isinstance(value, torch.Tensor):
        if value.numel() > 12 or value.is_meta:  # which has no values
            return f"<tensor {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}>"
        return " ".join(repr(value).split())
    if isinstance(value, torch.device):
        return repr(str(value))
    if type(value) is list and value and all(type(row) is dict and [*row] == [*value[0]] for row in value):
        table = [[*value[0]], *([shown(cell) for cell in row.values()] for row in value[:6])]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        return "".join(f"\n  {line}" for line in lines + ["…"] * (len(value) > 6)) + "\n"
    if type(value) in (list, tuple) and (len(value) <= 6 or any(isinstance(item, torch.Tensor) for item in value)):
        inner = ", ".join([*map(shown, value[:6]), *["..."] * (len(value) > 6)])
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict) and (type(value) is not dict or len(value) <= 6):
        entries = [f"{key!r}: {shown(item)}" for key, item in list(value.items())[:6]]
        return "{" + ", ".join(entries + ["…"] * (len(value) > 6)) + "}"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    if isinstance(value, torch.optim.Optimizer):
        return f"{type(value).__name__}(lr={value.param_groups[0]['lr']:g})"
    try:
        whole = hasattr(value, "_fields") or isinstance(value, torch.nn.Module)
        text = " ".join(repr(value).split()) if whole else _SHORT.repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return _cut(text)
