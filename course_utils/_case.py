"""What did the answer do when it was called, and is that right?"""

from __future__ import annotations

import copy
import html
import linecache
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from course_utils import _sandbox, counting
from course_utils._compare import difference, shown

if TYPE_CHECKING:
    from course_utils.exercise import Exercise

__all__ = ["Case", "WrongAnswer", "shown"]

_PRINTED = 5  # lines of what the answer printed that a message shows


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
        self._call = self._printed = ""

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
        self.counts, self._printed = counts, outcome.printed
        if outcome.timed_out:
            self.fail(f"does not end: it was stopped after {self.exercise.limit_s:g} s")
        if outcome.error is not None:
            self._report(outcome.error)
        if outcome.changed:
            self.fail(f"changes {outcome.changed[0]}", "code after it would behave differently; leave it as it was")
        if not modifies and before is not None and difference((args, kwargs), before, copied=True):
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
        raise WrongAnswer(self.exercise, f"{self._prefix()}{words}{where}{self._said()}") from None

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
        raise WrongAnswer(self.exercise, "\n".join(lines) + self._said()) from None

    def _said(self) -> str:
        """Return the first lines that the answer printed in the last call, for the end of a message."""
        lines = [line[:100] for line in self._printed.strip().splitlines()]
        more = [f"    … and {len(lines) - _PRINTED} more lines"] if len(lines) > _PRINTED else []
        shortened = [f"    {line}" for line in lines[:_PRINTED]] + more
        return "\n  your code printed:\n" + "\n".join(shortened) if lines else ""

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
