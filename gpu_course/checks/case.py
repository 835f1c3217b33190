"""Calls of an answer on one device, and the judgement of what they gave."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import linecache
import numbers
import re
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import simgpu
from course_utils import counting
from course_utils.explain import explain
from gpu_course import fields
from gpu_course.checks import counted, edges, sandbox
from gpu_course.checks.comparison import difference, outline, shown, where_they_differ
from gpu_course.checks.finding import Finding
from gpu_course.checks.footprint import (
    MODIFIES_INPUT,
    STILL_NEEDED,
    Footprint,
    Left,
    Returned,
    needs_no_graph,
    unfit_for_autograd,
)  # fmt: skip
from gpu_course.checks.panel import Panel, wrong_panel

# A warning that names a line of ours as the caller's, and shows it below.
_FOLDERS = *(Path(module.__file__ or "").parents[1] for module in (counting, sandbox)), Path(simgpu.__file__).parent
_OURS = "|".join(re.escape(str(folder)) for folder in _FOLDERS)
_FROM_OURS = re.compile(rf"^(?:{_OURS})[^\n]*?:\d+: (\w+: (?:[^\n]*\n)+?)  [^\n]*(?:\n|\Z)", re.MULTILINE)
_LONGEST = 1_000  # characters of what an error says, or of an argument
_LONGEST_CUT = 400  # characters of an argument of which parts are left out
_MANY = 1_000  # operators: a call of a right answer has fewer
_PRINTED = 5  # lines of what the answer printed that a message shows


@dataclass(frozen=True)
class Task:
    """Properties of an exercise that its check and lists need.

    `difficulty` is 1 to 3; each of the `hints` is more direct than the one before; `draws` allows random numbers to be
    taken; a call of the answer is ended when it has had `limit_s` seconds; `simulated` says that the check needs the
    simulated GPU, its clock or its exact memory, and runs there on every machine, beside a real GPU in a process of
    its own; `where` says in words where the answer runs, if that is not the device of the check; `needs` returns what
    is missing here for a check, in one sentence, "" if nothing: without it the exercise is not counted.
    """

    lesson: str
    name: str
    title: str
    minutes: int
    difficulty: int
    hints: tuple[str, ...]
    draws: bool = False
    limit_s: float = 3.0
    simulated: bool = False
    where: str = ""
    needs: Callable[[], str] = str

    @property
    def seed(self) -> int:
        """The seed of the check's random numbers."""
        return zlib.crc32(self.name.encode())


class Busy(Exception):
    """Raised where the machine had too little time to judge an answer; the message says how much it had."""


class WrongAnswer(Exception):
    """An answer that is wrong. Notebooks show the message alone, without a traceback."""

    def __init__(self, task: Task, finding: Finding | str) -> None:
        super().__init__(str(finding))
        self.finding = Finding(finding) if isinstance(finding, str) else finding
        self.exercise_name, self.message = task.name, str(finding)
        self._shown = False
        self.buttons: Callable[[], Any] | None = None  # what gives hint and solution, where a check was asked for
        self._hint = f"lesson{task.lesson}.{task.name}.hint() gives a hint."

    def __str__(self) -> str:
        return f"{self.message}\n{self._hint}"

    def __reduce__(self):
        return Exception, (str(self),)

    @property
    def panel(self) -> Panel:
        """The message as a notebook shows it."""
        return wrong_panel(self.exercise_name, self.finding, self._hint, self.buttons)

    def _render_traceback_(self) -> list[str]:
        if fields.in_kernel():
            if not self._shown:  # IPython asks twice
                self._shown = True
                self.panel.show()
            return ["WrongAnswer: the panel above says what is wrong."]
        return self.panel.text.splitlines()

    def _repr_html_(self) -> str:
        return self.panel.html


@dataclass(frozen=True)
class _First:
    """A call that can be repeated: its text, its device, copies of its arguments and result."""

    words: str
    device: torch.device
    args: tuple
    kwargs: dict[str, Any]
    value: Any


class Case:
    """One run of a check on one device: safe calls of the answer, comparisons, and messages.

    `counts` holds what the last call did (`course_utils.counting`): copies, host reads, operators.
    """

    def __init__(self, task: Task, answer: Callable, device: torch.device) -> None:
        self.task, self.answer, self.device = task, answer, device
        self.calls = 0
        self.counts = counting.Counts()
        self._call = self._made = self._printed = ""
        self._diagnose: Callable[[], None] = _nothing
        self.returned: Any = None  # what the last call by `error_of` returned
        self._gave = "value"  # the type of what the last call returned
        self._words: set[str] = set()  # of all calls
        self._first: _First | None = None  # the first that can be made again
        self.reference: Callable | None = None  # of the exercise
        self.mistakes: Callable[[], Iterable[Any]] = tuple  # returns those of the exercise, which are read when asked
        self.left: dict[str, Finding] = {}  # what calls left changed, wrong where nothing else is
        self._returned = Returned(None, ())  # by the last call

    def call(
        self, *args: Any, modifies: bool | str = False, draws: bool | None = None, called: str = "", **kwargs: Any
    ) -> Any:
        """Call the answer and return its value. Raises `WrongAnswer` if it raises, never ends, changes its inputs, or
        leaves random state, default device or the like changed.

        `modifies` says what it may change: the aspects of a `Footprint`, in words, or True for all. `called` are words
        for this call, where the arguments themselves say less.
        """
        self._made = called or _words(self.task.name, args, kwargs)
        args, kwargs = self._as_taken(args, kwargs) if kwargs else (args, kwargs)
        return self._run(self.answer, self._made, args, kwargs, modifies, draws, keeps=True)

    def _as_taken(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Return arguments by their places where the answer calls its parameters otherwise than the text."""
        theirs = inspect.signature(self.answer).parameters
        if self.reference is None or theirs.keys() >= kwargs.keys():
            return args, kwargs
        bound = inspect.signature(self.reference).bind(*args, **kwargs)
        return bound.args, bound.kwargs

    def use(
        self, made: Callable, *args: Any, modifies: bool | str = False, draws: bool | None = None, **kwargs: Any
    ) -> Any:
        """Call an object that the answer made: a module, one of its methods, a returned function; otherwise as `call`.

        Messages say how it was made, or the words that it has under `__called__`.
        """
        method = getattr(made, "__name__", "")
        owned = getattr(made, "__self__", None) is not None
        made_by = f"{self._made or self.task.name}{'.' + method if method and owned else ''}"
        name = getattr(made, "__called__", made_by)
        return self._run(made, _words(name, args, kwargs), args, kwargs, modifies, draws)

    def error_of(self, *args: Any, modifies: bool | str = True, **kwargs: Any) -> BaseException | None:
        """Call an answer that should raise, and return the error; None where it returned.

        What it returned instead is `returned`. It may draw torch's random numbers.
        """
        footprint = Footprint(self.reference or self.answer, args, kwargs)
        outcome = self._outcome(self.answer, _words(self.task.name, args, kwargs), args, kwargs, None)
        changed = [f"changes {name}" for name in outcome.changed if name != sandbox.RANDOM[0]]
        self.note_left([*((one, one, sandbox.BEHAVES) for one in changed), *footprint.left(modifies)])
        self.returned = outcome.value
        return outcome.error

    def again(self) -> None:
        """Call the answer once more as it was called first, after all other calls. Raises `WrongAnswer` if it differs.

        Only where that can be: not where it draws random numbers, changes what it gets, or is handed functions.
        """
        first = self._first
        if first is None:
            return
        edges.note("second_call")
        self.device = first.device
        given = copy.deepcopy((first.args, first.kwargs))
        got = self._repeated(first, given)
        name = "gives something else when it is called a second time with the same"
        why = "what earlier calls left behind changes it: compute everything anew, and keep nothing between calls"
        self._judge("second call", not _same(got, first.value), got, lambda: self._finding(name, why, first.value, got))
        self._turned(first, given)
        if any(given) and _overwritten(got):
            last = self._repeated(first, copy.deepcopy((first.args, first.kwargs)))
            name = "returns one object for all calls with the same, and a caller has changed it"
            why = "what a caller does with a result is its own affair: return a new one each time"
            kept = not _same(last, first.value)
            self._judge("kept object", kept, last, lambda: self._finding(name, why, first.value, last))

    def _repeated(self, first: _First, given: tuple[tuple, dict[str, Any]]) -> Any:
        return self._run(self.answer, first.words, *given, modifies=False, draws=None)

    def _turned(self, first: _First, given: tuple[tuple, dict[str, Any]]) -> None:
        """Call the answer again with what it was `given`, rows in reverse order, in place where that can be.

        Raises `WrongAnswer` where it gives what it gave before and the reference something else.
        """
        if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(given)):
            return
        turned: Any = tree_map_only(torch.Tensor, _turned, given)
        try:
            right = self.reference(*turned[0], **turned[1])  # pyright: ignore[reportOptionalCall]
        except Exception:  # the order has a meaning
            return
        if _same(right, first.value):
            return
        got = self._outcome(self.answer, _words(self.task.name, *turned), *turned, draws=None).value
        name = "gives what it gave for other numbers of the same shape"
        why = "a result was kept from an earlier call: compute it anew from the numbers of this call"
        self._judge("kept result", _same(got, first.value), got, lambda: self._finding(name, why, right, got))
        self.note_left(self._returned.changes(got))

    def leaves_nothing(self) -> None:
        """Raise `WrongAnswer` for the first change that a call left behind; the last of all tests."""
        for label, finding in self.left.items():
            self._judge(label, True, ..., lambda finding=finding: finding)

    def note_left(self, left: Iterable[Left]) -> None:
        """Note a change that a call left behind, on another rank say: reported where nothing else is wrong."""
        for name, label, why in left:
            if label not in self.left:
                self.left[label] = self._finding(name, why, ..., ..., counts_as=label)

    def _run(
        self, fn: Callable, words: str, args: tuple, kwargs: dict[str, Any], modifies: bool | str, draws: bool | None,
        *, keeps: bool = False,
    ) -> Any:  # fmt: skip
        before = None if modifies else _copied((args, kwargs))  # a copy would be alive during the call
        footprint = Footprint(self.reference or fn if keeps else fn, args, kwargs)  # in the names that the text has
        graphless = keeps and not inspect.isclass(fn) and needs_no_graph((args, kwargs))  # what was made has parameters
        outcome = self._outcome(fn, words, args, kwargs, draws)
        if outcome.error is not None:
            self._diagnose()
            self.fail(_raised(self.answer, outcome.error), counts_as=counted.error_name(outcome.error))
        drawn = [name for name in outcome.changed if name in sandbox.RANDOM]
        for changes in (f"changes {name}" for name in outcome.changed if name not in drawn):
            self.fail(changes, sandbox.BEHAVES, counts_as=changes)
        if not modifies and before is not None and difference((args, kwargs), before, copied=True):
            self.fail(MODIFIES_INPUT, STILL_NEEDED, counts_as=MODIFIES_INPUT)
        self._gave = "tensor" if isinstance(outcome.value, torch.Tensor) else type(outcome.value).__name__
        self.note_left(footprint.left(modifies))
        self.note_left(self._returned.changes(outcome.value))
        self.note_left((f"changes {name}", f"changes {name}", sandbox.BEHAVES) for name in drawn)
        if graphless:
            self.note_left(unfit_for_autograd(outcome.value, (args, kwargs)))
        self._returned = Returned(outcome.value, (args, kwargs), weakly=self.task.simulated)
        if before is not None:
            edges.note("unchanged")
        repeats = keeps and before is not None and self._first is None and not (self.task.draws or self.task.simulated)
        if repeats and _usual() and _plain((*before, outcome.value)):  # pyright: ignore[reportOptionalIterable]
            gave = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), outcome.value)
            self._first = _First(words, self.device, *before, gave)  # pyright: ignore[reportCallIssue]
        return outcome.value

    def _outcome(
        self, fn: Callable, words: str, args: tuple, kwargs: dict[str, Any], draws: bool | None
    ) -> sandbox.Outcome:
        self.about(words, self.device)
        draws = self.task.draws if draws is None else draws
        edges.note_call((*args, *kwargs.values()), self.device)
        edges.note(*["random_state"] * (not draws), *["other_input"] * (words not in self._words and bool(self._words)))
        self._words.add(words)
        if self.device.type in ("cuda", "mps", "xpu"):
            load_libraries(self.device)
        self._returned.keep()

        def alone(*args: Any, **kwargs: Any) -> Any:
            vars(counts).update(vars(counting.Counts()))  # without what the sandbox does before and after
            try:
                return fn(*args, **kwargs)
            finally:
                self.counts = copy.deepcopy(counts)

        with counting.count() as counts:
            outcome = sandbox.call(alone, args, kwargs, limit_s=self.task.limit_s, device=self.device, draws=draws)
        self.called(outcome.printed)
        if outcome.busy:
            raise Busy(f"This machine is busy: {self.task.name} could not be judged, {outcome.busy}")
        if outcome.timed_out:
            operators = self.counts.operators
            why = f"it had called {operators:,} operators by then: work on whole tensors, not entry by entry"
            name = f"does not end within {self.task.limit_s:g} s, and was stopped"
            self.fail(name, why if operators >= _MANY else "", counts_as="does not end")
        return outcome

    @contextlib.contextmanager
    def diagnose_first(self, check: Callable[[], None]) -> Iterator[None]:
        """Run `check` before an error raised in this context is reported; it may name the cause."""
        self._diagnose = check
        try:
            yield
        finally:
            self._diagnose = _nothing

    @property
    def doing(self) -> str:
        """Text of the call that messages are about; empty before the first."""
        return f"{self._call} on {self.device}" if self._call else ""

    def about(self, call: str, device: torch.device) -> None:
        """Make the following messages refer to this call of the answer, on `device`."""
        self._call, self.device = call, device

    def called(self, printed: str) -> None:
        """Record a call that the check itself made, on other ranks say, and what it printed."""
        self.calls += 1
        self._printed = printed

    def fail(
        self,
        name: str,
        why: str = "",
        *,
        expected: Any = ...,
        got: Any = ...,
        more: Callable[[], str] = str,
        counts_as: str = "",
    ) -> NoReturn:
        """Raise `WrongAnswer`: the call, what was seen or the mistake's name, expected and got, why it matters.

        `more` gives further lines of what was seen. It is called where a reader will see them, and may take long.
        It is counted under the name `counts_as`, or under what the check's own source has of `name`.
        """
        label = name.partition("\n")[0]
        finding = functools.partial(self._finding, why=why, expected=expected, got=got)
        self._judge(label, True, got, lambda: finding(name + more(), counts_as=counts_as or counted.static(name)))
        raise WrongAnswer(self.task, name)

    def _judge(self, label: str, wrong: bool, got: Any, find: Callable[[], Finding]) -> None:
        """Record one judgement of the check: its name, whether it failed, and the value of the answer.

        Raises `WrongAnswer` if it is wrong, with what `find` says of it.
        """
        if wrong:
            raise WrongAnswer(self.task, find()) from None

    def _finding(self, name: str, why: str, expected: Any, got: Any, counts_as: str = "", note: str = "") -> Finding:
        call = self.doing
        values = ["" if value is ... else shown(value) for value in (expected, got)]
        if values[0] == values[1] and "<tensor" in values[0]:
            values = ["", ""]  # large tensors of one shape: `name` says how far apart they are
        return Finding(name, why, call, *values, said=self._said(), counted=counts_as, note=note)

    def _said(self) -> str:
        """Return the first lines that the answer printed in the last call, for the end of a message."""
        lines = [line[:100] for line in _FROM_OURS.sub(r"\1", self._printed).strip().splitlines()]
        more = [f"    … and {len(lines) - _PRINTED} more lines"] if len(lines) > _PRINTED else []
        shortened = [f"    {line}" for line in lines[:_PRINTED]] + more
        return "\n  your code printed:\n" + "\n".join(shortened) if lines else ""

    def stopped(self, error: Exception) -> Finding:
        """Return the finding where `error` ended a check that passes with the reference.

        So it comes from what the answer returned, or did.
        """
        name = (
            f"returns a {self._gave} that cannot be used as the text says: {type(error).__name__}: {_first_line(error)}"
        )
        return self._finding(f"{name}{explained(error)}", "", ..., ...)

    def backward(self, got: torch.Tensor) -> None:
        """Run backward through the graph of `got`, if any; raises `WrongAnswer` where the answer broke it."""
        with self.going_back():
            if got.requires_grad:
                got.sum().backward()

    @contextlib.contextmanager
    def going_back(self) -> Iterator[None]:
        """Raise `WrongAnswer` where a backward pass through the answer's graph, in this context, raises."""
        try:
            yield
        except RuntimeError as error:
            name = f"its backward pass raises {type(error).__name__}: {_first_line(error)}"
            self.fail(name, counts_as=f"its backward pass {counted.error_name(error)}")

    def fail_if(self, condition: Any, name: str, why: str = "", *, expected: Any = ..., got: Any = ...) -> None:
        """Raise `WrongAnswer` named `name` if `condition` holds: for faults that the values alone do not show.

        Examples are the order of calls, copies, messages, modes and types. A mistake that gives other values is
        stored as a wrong answer beside the reference.
        """
        finding = functools.partial(self._finding, name, why, expected, got)
        self._judge(name if condition else "", bool(condition), got, lambda: finding(counts_as=counted.static(name)))

    def equal(
        self,
        got: Any,
        expected: Any,
        *,
        what: str = "the result",
        rtol: float | None = None,
        atol: float | None = None,
        why: str = "",
    ) -> None:
        """Raise `WrongAnswer` unless `got` equals `expected`: type, structure, shape, dtype, device and values.

        `what` names what is compared, and `why` is a note on it: no reason, because the cause is not known. Without
        `rtol` and `atol` both are those of float32, and of a tensor in float64 a tenth of a thousandth of them.
        """
        exact = 1e-4 if isinstance(expected, torch.Tensor) and expected.dtype == torch.float64 else 1.0
        rtol, atol = exact * 1e-5 if rtol is None else rtol, exact * 1e-6 if atol is None else atol
        problem = difference(got, expected, rtol=rtol, atol=atol, where=what)

        def shown_of() -> tuple[Any, Any]:
            return where_they_differ(got, expected, rtol=rtol, atol=atol)[::-1]

        self._judge("equal", bool(problem), got, lambda: self._finding(problem, "", *shown_of(), note=why))

    def budget(self, what: str, used: int, allowed: int, why: str = "") -> None:
        """Raise `WrongAnswer` if more than `allowed` of `what` were used: the result is right, the way is not."""
        edges.note_budget(what, used, allowed)
        name = f"the result is right, but it takes {used} {what} and the limit is {allowed}"
        finding = functools.partial(self._finding, name, why, ..., ...)
        self._judge(
            what, used > allowed, ..., lambda: finding(counts_as=f"takes more {counted.static(what)} than allowed")
        )


def _nothing() -> None:
    """Accept any value."""


def methods_of(answer: type) -> list[Callable]:
    """Return the functions that a class defines itself, also those in `staticmethod`, `classmethod` and `property`."""
    functions = [getattr(value, "__func__", getattr(value, "fget", value)) for value in vars(answer).values()]
    return [value for value in functions if inspect.isfunction(value)]


@functools.cache
def load_libraries(device: torch.device) -> None:
    """Load `device`'s libraries of products and convolutions: their first use takes seconds of a time limit."""
    x = torch.ones(1, 1, 8, 8, device=device)
    (torch.nn.functional.conv2d(x, x[..., :3, :3]) @ x[..., :6, :6]).sum().item()


def _raised(answer: Callable, error: BaseException) -> str:
    """Describe the error of an answer, with the reader's own line."""
    if isinstance(error, RecursionError):
        return "calls itself without end" + _own_line(answer, error)
    message = _first_line(error)
    return (
        f"raises {type(error).__name__}"
        + (f": {message}" if message else "")
        + _own_line(answer, error)
        + explained(error)
    )


def explained(error: BaseException) -> str:
    """Return two lines, what `error` means and what to do now; empty where no explanation is known."""
    known = explain(error)
    if known.name == "unknown" or known.name.startswith("simulated "):  # whose words stand in the first line
        return ""
    return f"\n  What it means: {known.what}\n  What to do: {known.now}"


def _own_line(answer: Callable, error: BaseException) -> str:
    """Return the last line of the answer in the traceback of `error`; empty where there is none.

    Of an answer that calls itself without end, it is the line that calls.
    """
    methods = methods_of(answer) if inspect.isclass(answer) else [answer]
    methods = [inspect.unwrap(method) for method in methods]  # torch.no_grad() as a decorator has lines of its own
    codes = [method.__code__ for method in methods if hasattr(method, "__code__")]
    files = {code.co_filename for code in codes}
    places = [(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    own = [place for place in places if place[0].co_filename in files]
    if not own:
        return ""
    ran, number = Counter(own).most_common(1)[0][0] if isinstance(error, RecursionError) else own[-1]
    text = linecache.getline(ran.co_filename, number).strip()
    around = [code for code in codes if number in _lines(code)]
    if not around:  # a helper that the answer calls
        name = re.sub(r"(\.<locals>\.<\w+>)+$", "", ran.co_qualname).rpartition("<locals>.")[2]
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
    """Return the first line of an error's message, and the second where the first only announces it."""
    known = explain(error)
    if known.name.startswith("simulated "):  # PyTorch's own words speak of what no reader knows
        return f"{known.what[:-1]}: {known.now}"
    first, _, rest = str(error).strip().partition("\n")
    return _cut(f"{first} {rest.strip().partition(chr(10))[0]}" if first.endswith(":") else first)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _words(name: str, args: tuple, kwargs: dict[str, Any]) -> str:
    words = [_argument(arg) for arg in args] + [f"{word}={_argument(value)}" for word, value in kwargs.items()]
    return f"{name}({', '.join(words)})"


def _argument(value: Any) -> str:
    """Format an argument for a message: whole, or in outline where it would be long."""
    text = shown(value)
    return text if len(text) <= (_LONGEST_CUT if "…" in text else _LONGEST) else outline(value)


_PLAIN = torch.Tensor, numbers.Number, str, torch.device, torch.dtype, type(None), set, frozenset
_MOST_KEPT = 10_000  # elements


def _plain(value: Any) -> bool:
    """Return whether `value` holds nothing but small tensors, numbers, text and the like, in frozen dataclasses too."""
    leaves = tree_leaves(value)
    small = sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor)) <= _MOST_KEPT
    return small and all(isinstance(leaf, _PLAIN) or _plain_record(leaf) for leaf in leaves)


def _plain_record(value: Any) -> bool:
    frozen = dataclasses.is_dataclass(value) and not isinstance(value, type) and type(value).__hash__ is not None
    return frozen and all(_plain(getattr(value, field.name)) for field in dataclasses.fields(value))


def _usual() -> bool:
    """Return whether all settings are the usual ones in this call."""
    return torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32


def _turned(x: torch.Tensor) -> torch.Tensor:
    """Return `x` itself with its rows in reverse order, or a new tensor where it cannot be written to."""
    if not x.dim() or x.layout != torch.strided:
        return x
    turned = x.detach().flip(0)
    try:
        x.detach().copy_(turned)
    except RuntimeError:  # elements that share memory
        return turned.requires_grad_(x.requires_grad)
    return x


def _overwritten(value: Any) -> bool:
    """Overwrite a result as a caller may, and return whether that could be done: tensors, lists, dicts and sets."""
    if isinstance(value, torch.Tensor):
        with contextlib.suppress(RuntimeError, NotImplementedError):  # elements that share memory
            value.detach().copy_(value.detach() == 0)
            return True
    elif isinstance(value, list | tuple | dict | set):
        inside = [_overwritten(one) for one in (value.values() if isinstance(value, dict) else value)]
        if isinstance(value, tuple):
            return any(inside)
        value.clear()
        return True
    return False


def _same(one: Any, other: Any) -> bool:
    return not difference(one, other, rtol=1e-4, atol=1e-6, copied=True)


def _copied(value: Any) -> Any:
    """Return a copy for a later comparison, or None where a part cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return None
