"""What did the answer do when it was called, how does that differ from what is right, and how is it said?"""

from __future__ import annotations

import copy
import html
import linecache
import reprlib
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from course_utils import _sandbox, counting

if TYPE_CHECKING:
    from course_utils.exercise import Exercise

__all__ = ["Case", "WrongAnswer", "shown"]

_LIMIT = 240  # characters of a value that a message shows


class WrongAnswer(Exception):
    """An answer that is wrong. Notebooks show the message alone, without a traceback."""

    def __init__(self, exercise: Exercise, message: str) -> None:
        super().__init__(message)
        self.exercise_name, self.message = exercise.name, message
        self._hint = f"lesson{exercise.lesson}.{exercise.name}.hint() gives a hint."

    def __str__(self) -> str:
        return f"{self.message}\n{self._hint}"

    def __reduce__(self):
        return Exception, (str(self),)

    def _render_traceback_(self) -> list[str]:
        return [f"{self.exercise_name}: not right yet.", *str(self).splitlines()]

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Case:
    """One run of a check on one device: calls the answer safely, compares, and names mistakes.

    `counts` holds what the last call did (`course_utils.counting`): copies, host reads, operators.
    """

    def __init__(self, exercise: Exercise, answer: Callable, device: torch.device) -> None:
        self.exercise, self.answer, self.device = exercise, answer, device
        self.calls = 0
        self.counts: counting.Counts | None = None
        self._call = ""

    def call(self, *args: Any, modifies: bool = False, draws: bool | None = None, **kwargs: Any) -> Any:
        """Call the answer and return its value. Raises `WrongAnswer` if it raises, never ends, changes its inputs
        (unless `modifies`), or leaves random state, default device or the like changed."""
        self.calls += 1
        before = _copied((args, kwargs))
        words = [shown(arg) for arg in args] + [f"{name}={shown(value)}" for name, value in kwargs.items()]
        self._call = f"{self.exercise.name}({', '.join(words)})"
        draws = self.exercise.draws if draws is None else draws
        with counting.count() as counts:
            outcome = _sandbox.call(
                self.answer, args, kwargs, limit_s=self.exercise.limit_s, device=self.device, draws=draws
            )
        self.counts = counts
        if outcome.timed_out:
            self.fail(f"does not end: it was stopped after {self.exercise.limit_s:g} s")
        if outcome.error is not None:
            self._report(outcome.error)
        if outcome.changed:
            self.fail(f"changes {outcome.changed[0]}", "code after it would behave differently; leave it as it was")
        if not modifies and before is not None and difference((args, kwargs), before):
            self.fail("modifies its input", "the caller still needs it; build a new object instead")
        return outcome.value

    def _report(self, error: BaseException) -> None:
        """Raise `WrongAnswer` with the reader's own line where the answer raised `error`."""
        if isinstance(error, RecursionError):
            self.fail("calls itself without end")
        code = getattr(self.answer, "__code__", None)
        own = [
            frame for frame in traceback.extract_tb(error.__traceback__)
            if code is not None and frame.filename == code.co_filename
        ]  # fmt: skip
        where = ""
        if own:
            first = linecache.getline(code.co_filename, code.co_firstlineno).strip()
            offset = own[-1].lineno - code.co_firstlineno + 1
            text = linecache.getline(own[-1].filename, own[-1].lineno).strip()
            where = f"\n  in line {offset} of your function:  {text or first}"
        message = str(error).strip().partition("\n")[0]
        words = f"raises {type(error).__name__}" + (f": {message}" if message else "")
        raise WrongAnswer(self.exercise, f"{self._prefix()}{words}{where}") from None

    def _prefix(self) -> str:
        return f"{self._call} on {self.device}\n  " if self._call else ""

    def fail(self, name: str, why: str = "", *, expected: Any = ..., got: Any = ...) -> None:
        """Raise `WrongAnswer`: the call, what was expected and got, the mistake's name and why it matters."""
        lines = [f"{self._prefix()}{name}"]
        if expected is not ...:
            lines.append(f"  expected: {shown(expected)}")
        if got is not ...:
            lines.append(f"  got:      {shown(got)}")
        if why:
            lines.append(f"  Why it matters: {why}")
        raise WrongAnswer(self.exercise, "\n".join(lines)) from None

    def mistake(self, when: Any, name: str, why: str = "", *, expected: Any = ..., got: Any = ...) -> None:
        """Raise `WrongAnswer` with the name of a known mistake if `when` holds."""
        if when:
            self.fail(name, why, expected=expected, got=got)

    def expect(self, condition: Any, message: str, why: str = "") -> None:
        """Raise `WrongAnswer` with `message` unless `condition` holds."""
        if not condition:
            self.fail(message, why)

    def equal(self, got: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-6, why: str = "") -> None:
        """Raise `WrongAnswer` unless `got` equals `expected`: type, structure, shape, dtype, device and values."""
        problem = difference(got, expected, rtol=rtol, atol=atol)
        if problem:
            self.fail(problem, why, expected=expected, got=got)

    def budget(self, what: str, used: int, allowed: int, why: str = "") -> None:
        """Raise `WrongAnswer` if more than `allowed` of `what` were used: the result is right, the way is not."""
        if used > allowed:
            self.fail(f"the result is right, but it takes {used} {what} and the limit is {allowed}", why)


def _copied(value: Any) -> Any:
    """Return a copy to compare with afterwards, or None where something in it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return None


def difference(got: Any, expected: Any, *, rtol: float = 0.0, atol: float = 0.0, where: str = "the result") -> str:
    """Return in words how `got` differs from `expected`, or nothing: tensors, containers and plain values."""
    rest = {"rtol": rtol, "atol": atol}
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(got, expected, where, rtol, atol)
    if got is None and expected is not None:
        return f"{where} is None: is a return missing?"
    if isinstance(expected, bool | str | torch.device | torch.dtype) or expected is None:
        if type(got) is not type(expected):
            return f"{where} is of type {type(got).__name__}, expected {type(expected).__name__}"
        return "" if got == expected else f"{where} is {shown(got)}, expected {shown(expected)}"
    if isinstance(expected, int | float):
        if isinstance(got, bool) or not isinstance(got, int | float):
            return f"{where} is of type {type(got).__name__}, expected {type(expected).__name__}"
        close = (
            got == expected
            or abs(got - expected) <= atol + rtol * abs(expected)
            or (got != got and expected != expected)
        )
        return "" if close else f"{where} is {shown(got)}, expected {shown(expected)}"
    if isinstance(expected, dict | list | tuple):
        if type(got) is not type(expected):
            return f"{where} is of type {type(got).__name__}, expected {type(expected).__name__}"
        if len(got) != len(expected):
            return f"{where} has {len(got)} entries, expected {len(expected)}"
        if isinstance(expected, dict) and list(got) != list(expected):
            return f"{where} has the keys {list(got)}, expected {list(expected)}"
        names = list(expected) if isinstance(expected, dict) else range(len(expected))
        found = (difference(got[name], expected[name], where=f"{where}[{name!r}]", **rest) for name in names)
        return next((problem for problem in found if problem), "")
    same = got is expected or type(got) is type(expected)
    try:
        return "" if same and (got is expected or bool(got == expected) or _opaque(expected)) else f"{where} differs"
    except Exception:
        return ""


def _opaque(value: Any) -> bool:
    """Return whether `value` compares by identity alone, so that a copy of it never equals it."""
    return type(value).__eq__ is object.__eq__


def _tensor_difference(got: Any, expected: torch.Tensor, where: str, rtol: float, atol: float) -> str:
    if got is None:
        return f"{where} is None: is a return missing?"
    if not isinstance(got, torch.Tensor):
        return f"{where} is of type {type(got).__name__}, expected a tensor"
    if got.device != expected.device:
        return f"{where} is on {got.device}, expected on {expected.device}"
    if got.shape != expected.shape:
        return f"{where} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    if got.dtype != expected.dtype:
        return f"{where} has dtype {got.dtype}, expected {expected.dtype}"
    mine, right = got.detach().cpu(), expected.detach().cpu()
    if torch.equal(mine, right) or torch.allclose(mine, right, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    return f"{where} has other values"


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _LIMIT
        self.maxdict = self.maxlist = self.maxtuple = 6


_SHORT = _Short()


def shown(value: Any) -> str:
    """Return `value` as a message shows it: small tensors whole, large ones by shape, dtype and device."""
    if isinstance(value, torch.Tensor):
        if value.numel() > 12:
            return f"<tensor {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}>"
        return " ".join(repr(value).split())
    if isinstance(value, torch.device):
        return repr(str(value))
    if isinstance(value, list | tuple) and type(value) in (list, tuple) and len(value) <= 6:
        inner = ", ".join(shown(item) for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if type(value) is dict and len(value) <= 6:
        return "{" + ", ".join(f"{key!r}: {shown(item)}" for key, item in value.items()) + "}"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    try:
        text = " ".join(repr(value).split()) if hasattr(value, "_fields") else _SHORT.repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= _LIMIT else text[: _LIMIT - 1] + "…"
