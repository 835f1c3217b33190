"""What did the answer do when it was called, and is that right?"""

from __future__ import annotations

import copy
import html
import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from course_utils import counting
from course_utils.checks import sandbox
from course_utils.checks.comparison import difference, shown

if TYPE_CHECKING:
    from course_utils.checks.engine import Exercise

__all__ = ["Case", "WrongAnswer", "methods_of", "shown"]

# A warning that names a line of ours as the caller's, and shows it below.
_OURS = re.escape(str(Path(__file__).parent))
_FROM_OURS = re.compile(rf"^{_OURS}[^\n]*?:\d+: (\w+: (?:[^\n]*\n)+?)  [^\n]*(?:\n|\Z)", re.MULTILINE)
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
        self._call = self._made = self._printed = ""

    def call(self, *args: Any, modifies: bool = False, draws: bool | None = None, **kwargs: Any) -> Any:
        """Call the answer and return its value. Raises `WrongAnswer` if it raises, never ends, changes its inputs
        (unless `modifies`), or leaves random state, default device or the like changed."""
        self._made = _words(self.exercise.name, args, kwargs)
        return self._run(self.answer, self._made, args, kwargs, modifies, draws)

    def use(self, made: Callable, *args: Any, modifies: bool = False, draws: bool | None = None, **kwargs: Any) -> Any:
        """Call what the answer made: a module, a method of it, a function that it returned; else as `call`."""
        method = getattr(made, "__name__", "")
        owned = getattr(made, "__self__", None) is not None
        name = f"{self._made or self.exercise.name}{'.' + method if method and owned else ''}"
        return self._run(made, _words(name, args, kwargs), args, kwargs, modifies, draws)

    def _run(
        self, fn: Callable, words: str, args: tuple, kwargs: dict[str, Any], modifies: bool, draws: bool | None
    ) -> Any:
        before = None if modifies else _copied((args, kwargs))  # a copy would be alive during the call
        self.about(words, self.device)
        draws = self.exercise.draws if draws is None else draws
        with counting.count() as counts:
            outcome = sandbox.call(fn, args, kwargs, limit_s=self.exercise.limit_s, device=self.device, draws=draws)
        self.counts = counts
        self.called(outcome.printed)
        if outcome.timed_out:
            self.fail(f"does not end: it was stopped after {self.exercise.limit_s:g} s")
        if outcome.error is not None:
            self._report(outcome.error)
        if outcome.changed:
            self.fail(f"changes {outcome.changed[0]}", "code after it would behave differently; leave it as it was")
        if not modifies and before is not None and difference((args, kwargs), before, copied=True):
            self.fail("modifies its input", "the caller still needs it; build a new object instead")
        return outcome.value

    def about(self, call: str, device: torch.device) -> None:
        """Let the messages that follow be about this call of the answer, on `device`."""
        self._call, self.device = call, device

    def called(self, printed: str) -> None:
        """Note that the answer was called, by the check itself on other ranks say, and what was printed meanwhile."""
        self.calls += 1
        self._printed = printed

    def _report(self, error: BaseException) -> None:
        """Raise `WrongAnswer` with the reader's own line where the answer raised `error`."""
        if isinstance(error, RecursionError):
            self.fail("calls itself without end")
        message = _first_line(error)
        words = f"raises {type(error).__name__}" + (f": {message}" if message else "")
        raise WrongAnswer(
            self.exercise, f"{self._prefix()}{words}{_own_line(self.answer, error)}{self._said()}"
        ) from None

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
        lines = [line[:100] for line in _FROM_OURS.sub(r"\1", self._printed).strip().splitlines()]
        more = [f"    … and {len(lines) - _PRINTED} more lines"] if len(lines) > _PRINTED else []
        shortened = [f"    {line}" for line in lines[:_PRINTED]] + more
        return "\n  your code printed:\n" + "\n".join(shortened) if lines else ""

    def backward(self, got: torch.Tensor) -> None:
        """Go back through the graph of `got`, if it has one; raises `WrongAnswer` where the answer broke the graph."""
        with self.going_back():
            if got.requires_grad:
                got.sum().backward()

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """Raise `WrongAnswer` where a backward pass through the answer's graph, in this context, raises."""
        try:
            yield
        except RuntimeError as error:
            self.fail(f"its backward pass raises {type(error).__name__}: {_first_line(error)}")

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


def methods_of(answer: type) -> list[Callable]:
    """Return the functions that a class defines itself, also those in `staticmethod`, `classmethod` and `property`."""
    found = [getattr(value, "__func__", getattr(value, "fget", value)) for value in vars(answer).values()]
    return [value for value in found if inspect.isfunction(value)]


def _own_line(answer: Callable, error: BaseException) -> str:
    """Return the last line of the answer's own source that `error` went through, or nothing."""
    methods = methods_of(answer) if inspect.isclass(answer) else [answer]
    methods = [inspect.unwrap(method) for method in methods]  # torch.no_grad() as a decorator has lines of its own
    codes = [method.__code__ for method in methods if hasattr(method, "__code__")]
    files = {code.co_filename for code in codes}
    own = [place for place in traceback.walk_tb(error.__traceback__) if place[0].f_code.co_filename in files]
    if not own:
        return ""
    frame, number = own[-1]
    text = linecache.getline(frame.f_code.co_filename, number).strip()
    around = [code for code in codes if number in _lines(code)]
    if not around:  # a helper that the answer calls
        name = re.sub(r"(\.<locals>\.<\w+>)+$", "", frame.f_code.co_qualname).rpartition("<locals>.")[2]
        return f"\n  in `{name}`:  {text}"
    code = max(around, key=lambda code: code.co_firstlineno)
    owner = f"`{code.co_name}`" if inspect.isclass(answer) else "your function"
    return f"\n  in line {number - code.co_firstlineno + 1} of {owner}:  {text}"


def _lines(code: CodeType) -> range:
    """Return the lines of a function, those of the functions within it too."""
    within = [_lines(inner) for inner in code.co_consts if isinstance(inner, CodeType)]
    numbers = [number for *_, number in code.co_lines() if number] + [lines[-1] for lines in within]
    return range(code.co_firstlineno, max(numbers, default=code.co_firstlineno) + 1)


def _first_line(error: BaseException) -> str:
    """Return the first line of the message of `error`, and the next where that one only announces it."""
    first, _, rest = str(error).strip().partition("\n")
    return f"{first} {rest.strip().partition(chr(10))[0]}" if first.endswith(":") else first


def _words(name: str, args: tuple, kwargs: dict[str, Any]) -> str:
    words = [shown(arg) for arg in args] + [f"{word}={shown(value)}" for word, value in kwargs.items()]
    return f"{name}({', '.join(words)})"


def _copied(value: Any) -> Any:
    """Return a copy to compare with afterwards, or None where something in it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return None
