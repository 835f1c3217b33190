"""Exercise: its reference answer, its check, and the course of a check.

An exercise is a module that has its name, `gpu_course/lesson02/double.py`: a function with a docstring is the
reference, and the check tells right from wrong on each device of `devices.check_devices()`:

    @exercise(title="Double on the device", minutes=5, difficulty=1, hints=("Which method moves a tensor?", "…"))
    def double(x: torch.Tensor, device: torch.device) -> torch.Tensor:
        \"\"\"Return twice `x`, on `device`.\"\"\"
        return 2 * x.to(device)


    @double.checks
    def _(case: Case) -> None:
        x = torch.tensor([1.0, 2.0])
        got = case.call(x, case.device)
        case.fail_if(case.counts.copies_d2h, "copies to the host", "each copy waits for the device")
        case.equal(got, torch.tensor([2.0, 4.0], device=case.device))

Mistakes that people make stand beside it in `double.diff`, as the wrong answers that they are (`checks.answers`).
The reference may also be a class, such as a module: `case.call` then makes an object, `case.use` calls it.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch

import simgpu
from course_utils import arguments, devices
from gpu_course import fields, ways
from gpu_course import solved as store
from gpu_course.checks import edges
from gpu_course.checks.answers import Alternative, Row, beside, source_of
from gpu_course.checks.case import Busy, Case, Task, WrongAnswer, methods_of
from gpu_course.checks.child import examine_in_child
from gpu_course.checks.comparison import shown
from gpu_course.checks.mistakes import Mistake, Note, Recording, examined, recognised, recorded
from gpu_course.checks.panel import buttons, right_panel, show_alone
from gpu_course.checks.stubs import stub
from gpu_course.checks.unread import syntax_error

PATIENCE_S = 2.0  # a check that takes longer says what it is doing


@contextlib.contextmanager
def print_if_slow(after_s: float, message: Callable[[], str]) -> Iterator[None]:
    """Print `message()` if the block takes longer than `after_s` seconds.

    In a notebook the line disappears when the block has ended. Elsewhere it goes to standard error, and stays.
    """
    stream = sys.stderr  # of now: while the answer runs there is another
    lines: list[fields.PassingLine] = []

    def say() -> None:
        if fields.in_kernel():
            lines.append(fields.PassingLine(message()))
        else:
            print(message(), file=stream, flush=True)

    timer = threading.Timer(after_s, say)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # a browser has no threads, and no such line
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        for line in lines:
            line.remove()


def exercise(
    *, lesson: str = "", title: str = "", minutes: int, difficulty: int, hints: tuple[str, ...], **options: Any
) -> "Callable[[Callable], Exercise]":
    """Make an `Exercise` of the reference answer below the decorator, a function or a class.

    The arguments, and the `options` `draws`, `limit_s`, `simulated`, `where` and `needs`, are the fields of `Task`. The
    lesson is the one in whose folder the reference stands, and the title that of its file, unless they are given.
    """
    if isinstance(hints, str) or len(hints) < 1:  # a text is a sequence of letters, too
        raise ValueError(f"hints must be at least one text, in a tuple, not {hints!r}")
    if difficulty not in (1, 2, 3):
        raise ValueError(f"difficulty must be 1, 2 or 3, not {difficulty!r}")
    if options.get("simulated"):
        options.setdefault("where", "the simulated GPU")

    def make(reference: Callable) -> Exercise:
        if not inspect.getdoc(reference):
            raise ValueError(f"the reference {reference.__name__} needs a docstring: it is the task in one sentence")
        named = title or "".join(re.findall("^The exercise “(.+?)”", sys.modules[reference.__module__].__doc__ or ""))
        if not named:
            raise ValueError(f"the file of {reference.__name__} must open with its title: The exercise “…”.")
        number = lesson or reference.__module__.partition(".lesson")[2].partition(".")[0]
        return Exercise(reference, Task(number, reference.__name__, named, minutes, difficulty, hints, **options))

    return make


def _no_check(case: Case) -> None:
    """Placeholder for a check until one is registered."""
    raise RuntimeError(f"{case.task.name} has no check")


class Exercise:
    """A reference answer, its check, and the mistakes that people make."""

    def __init__(self, reference: Callable, task: Task) -> None:
        self.reference, self.task = reference, task
        self.lesson, self.name = task.lesson, task.name
        self._check: Callable[[Case], None] = _no_check
        self.exempted: dict[str, str] = {}  # edge cases that the check does not exercise, with the reason
        self._right = Mistake("", "", reference)  # what the check sees of a right answer, kept as it is of mistakes
        self._hinted = 0
        self._doing: Callable[[], str] = str  # what a check that takes long is doing

    def __repr__(self) -> str:
        return f"<exercise lesson{self.lesson}.{self.name}: {self.task.title}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the reference, so that a reference may call itself by its name."""
        return self.reference(*args, **kwargs)

    def checks(self, function: Callable[[Case], None]) -> Callable[[Case], None]:
        """Register the check: a function of a `Case` that returns where the answer is right and raises elsewhere."""
        self._check = function
        return function

    def exempt(self, why: str | Mapping[str, str], *names: str) -> None:
        """Exempt the check from these edge cases of the catalogue (`edges`), groups or single ones, for a reason.

        A text of `names` may hold several, with spaces between them. `why` may be a table of reasons by edge, as
        those of exercises of one kind in `common.exemptions`.
        """
        for edge in edges.named(*" ".join(names).split()):
            self.exempted[edge] = why if isinstance(why, str) else why[edge]

    @functools.cached_property
    def given(self) -> Callable | None:
        """The broken program that the lesson's stub is, where the task is a repair."""
        return next((made for _, made in self.stored("broken")), None)

    @functools.cached_property
    def alternatives(self) -> list[Alternative]:
        """Right answers in other styles, which `solution()` prints behind the reference."""
        styles = self.stored("style")
        return [Alternative(row.name, made, row.answers[0].source(self.reference)) for row, made in styles]

    @functools.cached_property
    def mistakes(self) -> list[Mistake]:
        """The known mistakes, in the order of the file beside the reference."""
        return [Mistake(row.name, row.why, answer) for row, answer in self.stored("mistake")]

    def stored(self, kind: str) -> list[tuple[Row, Callable]]:
        """Return the answers of one kind in the file beside the reference, each with its row (`checks.answers`)."""
        return beside(self.reference).of(kind, self.reference)

    def check(self, answer: Callable) -> Callable:
        """Check `answer` and return it; not attempted, it returns the reference, so that later cells work.

        Raises `WrongAnswer` with the smallest failing input, what was expected and what came, and the mistake's name;
        or with the line that Python could not read, where `answer` is what stood there before.
        """
        if unread := syntax_error(self.name):
            wrong = WrongAnswer(self.task, unread)
            wrong.buttons = self._buttons
            raise wrong
        if answer is self.reference or answer is self:
            return self.reference
        if self.untouched(answer):
            print(
                f"{self.name}: not attempted yet, the lesson goes on with the reference.\n"
                f"lesson{self.lesson}.{self.name}.hint() gives a hint."
            )
            if fields.in_kernel():
                show_alone(self._buttons)
            return self.reference
        places = devices.check_devices()
        try:
            with print_if_slow(PATIENCE_S, lambda: f"{self.name}: still checking. {self._doing()}"):
                self.examine(answer, places)
        except Busy as error:
            print(f"{error}. Check it again when less runs here. The lesson goes on with your answer.")
            return answer
        except simgpu.Unavailable as error:
            print(f"{error}. The lesson goes on with your answer.")
            return answer
        except WrongAnswer as wrong:
            store.tried((self.lesson, self.name), wrong.finding.counted)
            wrong.buttons = self._buttons
            raise
        store.change({(self.lesson, self.name): True})
        self._show_right(self.task.where or " and ".join(str(place) for place in places))
        return answer

    def _show_right(self, where: str) -> None:
        more = " and another style" if self.alternatives else ""
        shows = f"lesson{self.lesson}.{self.name}.solution() shows ours{more}."
        right_panel(self.name, where, [shows, *filter(None, self._what_next())], self._buttons).show()

    def _what_next(self) -> list[str]:
        """Return how much of the lesson is solved, and which of its exercises comes next."""
        module = sys.modules.get(f"gpu_course.lesson{self.lesson}")
        shown = [getattr(module, name) for name in getattr(module, "__all__", ())]
        lesson = [found for found in shown if isinstance(found, Exercise) and not found.task.needs()]
        if self not in lesson:
            return []
        keys = [(found.lesson, found.name) for found in lesson]
        count = len(store.solved() & {*keys})
        said = f"{count} of {len(keys)} exercises" if count < len(keys) else "All exercises"
        said += f" of lesson {self.lesson} are solved."
        following = ways.left((self.lesson, self.name), keys)
        if not following:
            way = ways.chosen()
            is_last = way and (self.lesson, self.name) in way.exercises
            return [said, f"All exercises of your way, “{way.name}”, are solved." if way and is_last else ""]
        number, name = following[0]
        task = getattr(importlib.import_module(f"gpu_course.lesson{number}"), name).task
        return [said, f"Next: {task.title} ({name}, {ways.minutes((number, name), task.minutes)})."]

    def _buttons(self) -> Any:
        """Return the widget that gives what hint(), solution(), stub() and reset() say."""
        return buttons(
            {"Hint": self._next_hint, "Solution": self._solution, "Stub": self._stub, "Forget": self._forget}
        )

    def untouched(self, answer: Any) -> bool:
        """Return whether `answer` is the lesson's stub: `raise NotImplementedError`, or the broken program as given."""
        if self.given is None:
            return unsolved(answer)
        try:
            return _program(answer) == _program(self.given)
        except (OSError, TypeError, SyntaxError, AttributeError):  # no function, or one without a source
            return False

    def examine(self, answer: Any, places: torch.device | str | Iterable[torch.device | str]) -> None:
        """Run the check on `places`, one device or several, without progress; a `simulated` one on `sim:0` alone.

        Raises `WrongAnswer` if the answer is wrong, and TypeError or ValueError if `places` are no devices.
        """
        if self._check is _no_check:
            raise RuntimeError(f"{self!r} has no check")
        if why := self.task.needs():
            raise simgpu.Unavailable(f"{self.name} could not be checked. {why.rstrip('.')}")
        chosen = _devices(places)
        self._examine_shape(answer)
        if self.task.simulated:
            simulated = devices.simulated()
            if simulated is None:
                return examine_in_child(self.task, self.reference, answer)
            chosen = [simulated]
        for device in chosen:
            self._examine_on(answer, device)

    def _examine_on(self, answer: Any, device: torch.device) -> None:
        case = Recording(self.task, answer, device, readers=True)
        self._doing = lambda: f"Now: {case.doing}" if case.doing else ""
        try:
            finding = examined(self._tried, case)
            if finding is None and not case.calls:
                raise RuntimeError("the check never called the answer")
        except (Busy, simgpu.Unavailable):  # what the check needs is not on this machine
            raise
        except Exception as error:
            if answer is self.reference or self._fails(device):
                raise RuntimeError(
                    f"the check of {self.name} itself failed, your answer may be right: {type(error).__name__}: {error}"
                ) from error
            finding = case.stopped(error)  # by what the answer returned: with the reference the check ends
        if finding is None:
            return
        self._doing = lambda: "It is not right yet; now: is it a known mistake?"
        known = recognised(self.mistakes, self._tried, case, device)
        raise WrongAnswer(self.task, finding if known is None else finding.named(known.name, known.why))

    def _tried(self, case: Case) -> None:
        """Run the check on a case that knows the reference and the mistakes."""
        case.reference, case.mistakes = self.reference, lambda: self.mistakes
        self._check(case)

    def _fails(self, device: torch.device) -> bool:
        """Return whether the check finds something wrong on `place` even where the answer is the reference."""
        return any(note.wrong for note in recorded(self._tried, self.task, self._right, device))

    def recording(self, mistake: Mistake, device: torch.device) -> list[Note]:
        """Return all that the check finds of one of the mistakes on `device`: it goes on where it would fail."""
        return recorded(self._tried, self.task, mistake, device)

    def _examine_shape(self, answer: Any) -> None:
        """Raise unless the answer is a function, or a class where the reference is one, that takes what it takes."""
        wanted = inspect.isclass(self.reference)
        if not callable(answer) or inspect.isclass(answer) != wanted:
            kind = "nothing (None)" if answer is None else f"{type(answer).__name__}: {shown(answer)}"
            raise WrongAnswer(self.task, f"{self.name} must be a {'class' if wanted else 'function'}, not {kind}")
        for base in self.reference.__bases__ if wanted else ():
            if not issubclass(cast(type, answer), base):
                raise WrongAnswer(self.task, f"{self.name} must be a subclass of {_public_name(base)}")
        if any(_shape(function) == "dead" for function in _functions(answer)):
            line = f"{self.name}: delete the line `raise NotImplementedError`, because the code below it never runs"
            raise WrongAnswer(self.task, line)
        try:
            theirs, ours = inspect.signature(answer), inspect.signature(self.reference)
        except (TypeError, ValueError):
            return
        try:
            theirs.bind(*([None] * len(ours.parameters)))
        except TypeError:
            names = ", ".join(ours.parameters)
            raise WrongAnswer(self.task, f"{self.name} must take ({names}), yours takes {theirs}") from None

    def hint(self) -> None:
        """Print the next hint; after the last one, the last again."""
        print(self._next_hint())

    def _next_hint(self) -> str:
        hints = self.task.hints
        number = min(self._hinted, len(hints) - 1)
        self._hinted += 1
        last = number == len(hints) - 1
        after = f"The solution: lesson{self.lesson}.{self.name}.solution()" if last else "Call hint() again for more."
        return f"Hint {number + 1} of {len(hints)}: {hints[number]}\n{after}"

    def solution(self) -> None:
        """Print the reference answer with its comments, and other styles with what they cost."""
        print(self._solution())

    def _solution(self) -> str:
        styles = [f"Another style: {other.cost}.\n\n{other.source.rstrip()}" for other in self.alternatives]
        return "\n\n".join([source_of(self.reference).rstrip(), *styles])

    def stub(self) -> None:
        """Print the cell as the lesson gave it, to begin again."""
        print(self._stub())

    def _stub(self) -> str:
        path = inspect.getfile(inspect.unwrap(self.reference))
        return "The cell as it was, to copy:\n\n" + stub(Path(path), self.name)

    def reset(self) -> None:
        """Forget that this exercise was solved, and begin with the first hint again."""
        print(self._forget())

    def _forget(self) -> str:
        self._hinted = 0
        store.change({(self.lesson, self.name): False})
        return f"{self.name}: progress forgotten."


def unsolved(answer: Any) -> bool:
    """Return whether the body of `answer` is nothing but `raise NotImplementedError`, with a docstring or without.

    A class is unsolved where each of its methods is.
    """
    shapes = {_shape(function) for function in _functions(answer)}
    return shapes == {"stub"}


def _functions(answer: Any) -> list[Any]:
    return methods_of(answer) if inspect.isclass(answer) else [answer]


def _shape(function: Any) -> str:
    """Return "stub" for a body that only raises NotImplementedError, "dead" where code stands below that raise.

    Anything else, and what has no source, is "attempted".
    """
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return "attempted"
    body = [step for step in getattr(node, "body", []) if not _idle(step)] if isinstance(node, ast.FunctionDef) else []
    raised = ast.unparse(body[0]) if body else ""
    if raised.partition("(")[0] != "raise NotImplementedError":
        return "attempted"
    return "stub" if len(body) == 1 else "dead"


def _program(function: Any) -> str:
    """Return the body of a function without comments and docstring, in one layout."""
    node: Any = ast.parse(source_of(function)).body[0]
    return ast.unparse(ast.Module([step for step in node.body if not _idle(step)], []))


def _idle(step: ast.stmt) -> bool:
    return isinstance(step, ast.Pass) or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))


def _public_name(kind: type) -> str:
    """Return the shortest path from which `kind` can be imported, such as torch.nn.Module."""
    parts = kind.__module__.split(".")
    paths = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    public = (path for path in paths if getattr(sys.modules.get(path), kind.__qualname__, None) is kind)
    return f"{next(public, kind.__module__)}.{kind.__qualname__}"


def _devices(places: Any) -> list[torch.device]:
    """Return `places`, one device or several, as a list of at least one."""
    if isinstance(places, torch.device | str) or not isinstance(places, Iterable):
        return [arguments.device("places", places)]
    devices = [arguments.device(f"places[{at}]", place) for at, place in enumerate(places)]
    if not devices:
        raise ValueError(f"places is {places!r}, it must be a device or a list of at least one")
    return devices
