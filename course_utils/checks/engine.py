"""Is this answer right, and if not, what is the mistake?

A lesson's exercises stand in `course_utils/exercises/lessonNN.py`: a function with a docstring is the reference, a
check beside it tells right from wrong, on each device of `devices.check_devices()`:

    @exercise(title="Double on the device", minutes=5, difficulty=1, hints=("Which method moves a tensor?",))
    def double(x: torch.Tensor, device: torch.device) -> torch.Tensor:
        \"\"\"Return twice `x`, on `device`.\"\"\"
        return 2 * x.to(device)

    @double.checks
    def _(case: Case) -> None:
        x = torch.tensor([1.0, 2.0])
        got = case.call(x, case.device)
        case.mistake(got is x, "returns its input", "the caller's tensor stays where it was")
        case.equal(got, torch.tensor([2.0, 4.0], device=case.device))

The reference may also be a class, such as a module: `case.call` then makes an object, `case.use` calls it.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import re
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from course_utils import devices, simulator
from course_utils.base import arguments
from course_utils.base import solved as store
from course_utils.checks import sandbox
from course_utils.checks.case import Case, WrongAnswer, methods_of, shown
from course_utils.checks.child import examine_in_child

__all__ = ["Case", "Exercise", "WrongAnswer", "exercise", "lesson", "unsolved"]


def exercise(
    *, title: str, minutes: int, difficulty: int, hints: tuple[str, ...],
    draws: bool = False, limit_s: float = 3.0, simulated: bool = False, where: str = "", lesson: str = "",
) -> Callable[[Callable], Exercise]:  # fmt: skip
    """Make an `Exercise` of the reference answer below the decorator, a function or a class.

    `difficulty` is 1 to 3; each of the `hints` is more direct than the one before; `draws` allows random numbers to be
    taken; a call of the answer is ended after `limit_s` seconds; `simulated` says that the check needs the simulated
    GPU, its clock or its exact memory, and runs there on every machine, beside a real GPU in a process of its own;
    `where` says in words where the answer runs, if that is not the device of the check; `lesson` is the number of the
    lesson in two digits: a lesson's room has `exercise = lesson("03")`.
    """
    if not (isinstance(title, str) and title.strip()):
        raise ValueError(f"title must be text, not {title!r}")
    if isinstance(minutes, bool) or not isinstance(minutes, int) or minutes < 1:
        raise ValueError(f"minutes must be a whole number from 1, not {minutes!r}")
    if difficulty not in (1, 2, 3):
        raise ValueError(f"difficulty must be 1, 2 or 3, not {difficulty!r}")
    if isinstance(hints, str) or not hints or not all(isinstance(hint, str) and hint.strip() for hint in hints):
        raise ValueError(f"hints must be at least one text, in a tuple, not {hints!r}")
    options = {"draws": draws, "limit_s": limit_s, "simulated": simulated, "where": where, "lesson": lesson}
    return lambda reference: Exercise(reference, title, minutes, difficulty, tuple(hints), **options)


def lesson(number: str) -> Callable[..., Callable[[Callable], Exercise]]:
    """Return `exercise` for the lesson with this number, two digits such as "03"."""
    return functools.partial(exercise, lesson=number)


class Exercise:
    """A reference answer, its check and its hints."""

    def __init__(
        self, reference, title, minutes, difficulty, hints, *, draws, limit_s, simulated, where, lesson
    ) -> None:
        if not inspect.getdoc(reference):
            raise ValueError(f"the reference {reference.__name__} needs a docstring: it is the task in one sentence")
        self.reference: Callable = reference
        self.name: str = reference.__name__
        self.title, self.minutes, self.difficulty, self.hints = title, minutes, difficulty, hints
        self.draws, self.limit_s, self.simulated = draws, limit_s, simulated
        self.where = where or ("the simulated GPU" if simulated else "")
        self.lesson: str = lesson
        self._check: Callable[[Case], None] | None = None
        self._hinted = 0

    def __repr__(self) -> str:
        return f"<exercise lesson{self.lesson}.{self.name}: {self.title}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the reference, so that a reference may call itself by its name."""
        return self.reference(*args, **kwargs)

    def checks(self, function: Callable[[Case], None]) -> Callable[[Case], None]:
        """Register the check: a function of a `Case` that returns where the answer is right and raises elsewhere."""
        self._check = function
        return function

    def check(self, answer: Callable) -> Callable:
        """Check `answer` and return it; not attempted, it returns the reference, so that later cells work.

        Raises `WrongAnswer` with the smallest failing input, what was expected and what came, and the mistake's name.
        """
        if answer is self.reference or answer is self:
            return self.reference
        if unsolved(answer):
            if _dead_code(answer):
                raise WrongAnswer(
                    self,
                    f"{self.name}: delete the line `raise NotImplementedError`, because the code below it never runs",
                )
            print(
                f"{self.name}: not attempted yet, the lesson goes on with the reference. "
                f"lesson{self.lesson}.{self.name}.hint() gives a hint."
            )
            return self.reference
        places = devices.check_devices()
        try:
            self.examine(answer, places)
        except simulator.Unavailable as error:
            print(f"{error}. The lesson goes on with your answer.")
            return answer
        self._remember(solved=True)
        where = self.where or " and ".join(str(place) for place in places)
        print(f"{self.name}: right. Checked on {where}.")
        return answer

    def examine(self, answer: Any, places: torch.device | str | Iterable[torch.device | str]) -> None:
        """Run the check on `places`, one device or several, without progress; a `simulated` one on `sim:0` alone.

        Raises `WrongAnswer` if the answer is wrong, and TypeError or ValueError if `places` are no devices.
        """
        if self._check is None:
            raise RuntimeError(f"{self!r} has no check")
        chosen = _devices(places)
        self._examine_shape(answer)
        if self.simulated:
            simulated = devices.simulated()
            if simulated is None:
                return examine_in_child(self, answer)
            chosen = [simulated]
        for place in chosen:
            case = Case(self, answer, place)
            with sandbox.isolated(place, zlib.crc32(self.name.encode())):
                try:
                    self._check(case)
                    if not case.calls:
                        raise RuntimeError("the check never called the answer")
                except WrongAnswer:
                    raise
                except Exception as error:
                    raise RuntimeError(
                        f"the check of {self.name} itself failed, your answer may be right: "
                        f"{type(error).__name__}: {error}"
                    ) from error

    def _examine_shape(self, answer: Any) -> None:
        """Raise unless the answer is a function, or a class where the reference is one, that takes what it takes."""
        wanted = inspect.isclass(self.reference)
        if not callable(answer) or inspect.isclass(answer) != wanted:
            kind = "nothing (None)" if answer is None else f"{type(answer).__name__}: {shown(answer)}"
            raise WrongAnswer(self, f"{self.name} must be a {'class' if wanted else 'function'}, not {kind}")
        for base in self.reference.__bases__ if wanted else ():
            if not issubclass(answer, base):
                raise WrongAnswer(self, f"{self.name} must be a subclass of {_public_name(base)}")
        try:
            theirs, ours = inspect.signature(answer), inspect.signature(self.reference)
        except (TypeError, ValueError):
            return
        try:
            theirs.bind(*([None] * len(ours.parameters)))
        except TypeError:
            names = ", ".join(ours.parameters)
            raise WrongAnswer(self, f"{self.name} must take ({names}), yours takes {theirs}") from None

    def hint(self) -> None:
        """Print the next hint; after the last one, the last again."""
        number = min(self._hinted, len(self.hints) - 1)
        self._hinted += 1
        last = number == len(self.hints) - 1
        after = f"The solution: lesson{self.lesson}.{self.name}.solution()" if last else "Call hint() again for more."
        print(f"Hint {number + 1} of {len(self.hints)}: {self.hints[number]}\n{after}")

    def solution(self) -> None:
        """Print the reference answer with its comments."""
        source = textwrap.dedent(inspect.getsource(self.reference))
        print(source[re.search(r"^(def|class) ", source, re.MULTILINE).start() :].rstrip())

    def reset(self) -> None:
        """Forget that this exercise was solved, and begin with the first hint again."""
        self._hinted = 0
        self._remember(solved=False)
        print(f"{self.name}: progress forgotten.")

    def _remember(self, *, solved: bool) -> None:
        try:
            store.change({(self.lesson, self.name): solved})
        except OSError as error:
            print(f"Progress could not be saved: {error}")


_SKIPPED = {"RESUME", "NOP", "CACHE", "PUSH_NULL", "PRECALL", "COPY_FREE_VARS", "NOT_TAKEN", "EXTENDED_ARG"}


def unsolved(answer: Any) -> bool:
    """Return whether the body of `answer` is nothing but `raise NotImplementedError`, with a docstring or without.

    A class is unsolved where each of its methods is.
    """
    if inspect.isclass(answer):
        methods = methods_of(answer)
        return bool(methods) and all(unsolved(method) for method in methods)
    if not inspect.isfunction(answer):
        return False
    steps = [(step.opname, step.argval) for step in dis.get_instructions(answer) if step.opname not in _SKIPPED]
    names = [step[0] for step in steps]
    raises = steps[:1] == [("LOAD_GLOBAL", "NotImplementedError")] and names[-1:] == ["RAISE_VARARGS"]
    return raises and set(names[1:-1]) <= {"LOAD_CONST", "CALL", "CALL_FUNCTION"}


def _dead_code(answer: Callable) -> bool:
    """Return whether the source of an unsolved answer has statements below a `raise`: Python drops them unseen."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(answer)))
    except (OSError, TypeError, SyntaxError):  # no source, as for a function made by exec
        return False
    return any(_below_raise(node.body) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _below_raise(body: list[ast.stmt]) -> bool:
    below = body[next((at for at, step in enumerate(body) if isinstance(step, ast.Raise)), len(body)) + 1 :]
    idle = (ast.Pass, ast.Raise)
    return any(
        not (isinstance(step, idle) or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)))
        for step in below
    )


def _public_name(kind: type) -> str:
    """Return the shortest path from which `kind` can be imported, such as torch.nn.Module."""
    parts = kind.__module__.split(".")
    paths = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    found = (path for path in paths if getattr(sys.modules.get(path), kind.__qualname__, None) is kind)
    return f"{next(found, kind.__module__)}.{kind.__qualname__}"


def _devices(places: Any) -> list[torch.device]:
    """Return `places`, one device or several, as a list of at least one."""
    if isinstance(places, torch.device | str) or not isinstance(places, Iterable):
        return [arguments.device("places", places)]
    found = [arguments.device(f"places[{at}]", place) for at, place in enumerate(places)]
    if not found:
        raise ValueError(f"places is {places!r}, it must be a device or a list of at least one")
    return found
