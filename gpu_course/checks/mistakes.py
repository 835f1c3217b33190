"""Which known mistake is this? A mistake is the wrong answer itself; an answer that does the same gets its name."""

from __future__ import annotations
import __future__

import contextlib
import copy
import functools
import gc
import inspect
import linecache
import re
import textwrap
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from gpu_course.checks import sandbox
from gpu_course.checks.case import Busy, Case, Finding, Task, WrongAnswer
from gpu_course.checks.comparison import difference


@dataclass(frozen=True)
class Edit:
    """The reference answer with some texts replaced by others."""

    changes: tuple[tuple[str, str], ...]

    def of(self, reference: Callable) -> Callable:
        """Return the changed answer. Raises ValueError unless each old text stands in the reference exactly once."""
        source = self.source(reference)
        made = dict(vars(inspect.getmodule(reference)))
        file = f"<{reference.__name__}, edited {zlib.crc32(source.encode()):08x}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec", flags=__future__.annotations.compiler_flag), made)
        return made[reference.__name__]

    def source(self, reference: Callable) -> str:
        """Return the source of the changed answer. Raises ValueError as `of` does."""
        source = _kept_source(reference)
        for old, new in self.changes:
            if source.count(old) != 1:
                raise ValueError(f"{old!r} stands {source.count(old)} times in {reference.__name__}, it must be once")
            source = source.replace(old, new)
        return source


def edit(old: str, new: str, *more: str) -> Edit:
    """Return the wrong answer that is the reference with `old` replaced by `new`; `more` holds further pairs."""
    texts = (old, new, *more)
    return Edit(tuple(zip(texts[::2], texts[1::2], strict=True)))


def source_of(reference: Callable) -> str:
    """Return the source of a function or class without its decorators."""
    source = textwrap.dedent(inspect.getsource(reference))
    _, keyword, after = re.split(r"^(def |class )", source, maxsplit=1, flags=re.MULTILINE)
    return f"{keyword}{after}".rstrip() + "\n"


_kept_source = functools.cache(source_of)  # of references: Python reads the file again each time


@dataclass(frozen=True)
class Alternative:
    """A right answer in another style, its source, and what it costs or when it is to be preferred."""

    cost: str
    answer: Any
    source: str


@dataclass(frozen=True)
class Seen:
    """What a check was seen to find of a mistake: all of it, or what comes first, as more told nothing new."""

    notes: list[Note]
    whole: bool


@dataclass
class Mistake:
    """A wrong answer that people give, its name, and why it matters."""

    name: str
    why: str
    answer: Any
    seen: dict[torch.device, Seen] = field(default_factory=dict)


@dataclass(frozen=True)
class Note:
    """One verdict of a check: what was looked at, whether it was wrong, and which value the answer gave there."""

    label: str
    wrong: bool
    got: Any = None


class Recording(Case):
    """A case that notes each verdict and goes on, so that what an answer does on all inputs is seen.

    `finding` is what was wrong first, None where nothing was; it is put into words where the answer is a `readers`.
    With `like`, the notes of another answer, it ends at the first note that differs from them, and then `differs`.
    """

    def __init__(
        self, task: Task, answer: Any, device: torch.device, *, readers: bool = False, like: list[Note] | None = None
    ) -> None:
        super().__init__(task, answer, device)
        self.notes: list[Note] = []
        self.finding: Finding | None = None
        self.differs = False
        self._finds, self._like = readers, like

    def _judge(self, label: str, wrong: bool, got: Any, find: Callable[[], Finding]) -> None:
        at = len(self.notes)
        self.notes.append(Note(label, wrong, _kept(got) if wrong and got is not ... else None))
        if wrong and self._finds:
            self._finds = False
            self.finding = find()
            del self.notes[at + 1 :]  # to say more, the answer was called again
        if self._like is not None and not alike(self.notes[at:], self._like[at : at + 1]):
            self.differs = True
            raise WrongAnswer(self.task, "differs")


def _kept(value: Any) -> Any:
    """Return a copy of `value` on the CPU that nothing changes later; what cannot be copied counts as its type."""
    if isinstance(value, torch.Tensor):
        return str(value.device), value.detach().cpu().clone()
    if type(value) in (list, tuple):
        return type(value)(_kept(one) for one in value)
    if type(value) is dict:
        return {key: _kept(one) for key, one in value.items()}
    try:
        return copy.deepcopy(value)
    except Exception:
        return type(value)


def examined(check: Callable[[Case], None], case: Recording) -> Finding | None:
    """Return what `check` finds wrong first with a reader's answer, None if it is right; raises the check's own fault.

    The notes of the case then hold all that the check finds.
    """
    error = _run(check, case)
    if error is not None and case.finding is None:
        raise error
    return case.finding


def recorded(check: Callable[[Case], None], task: Task, mistake: Mistake, device: torch.device) -> list[Note]:
    """Return all that `check` finds of a mistake on `device`. It is the same each time, and so it is tried once."""
    return _seen(check, task, mistake, device, like=None).notes


def does(
    check: Callable[[Case], None], task: Task, mistake: Mistake, device: torch.device, notes: list[Note]
) -> bool:  # fmt: skip
    """Return whether `check` finds of a mistake what is in `notes`. It is tried until it differs, and that is kept."""
    return alike(_seen(check, task, mistake, device, like=notes).notes, notes)


def _seen(
    check: Callable[[Case], None], task: Task, mistake: Mistake, device: torch.device, like: list[Note] | None
) -> Seen:
    """Return what was seen of a mistake: all of it, or what comes before and with the first that is not `like` this."""
    kept = mistake.seen.get(device)
    if kept and (kept.whole or (like is not None and not alike(kept.notes, like[: len(kept.notes)]))):
        return kept
    case = Recording(task, mistake.answer, device, like=like)
    _run(check, case)
    mistake.seen[device] = Seen(case.notes, whole=not case.differs)
    return mistake.seen[device]


def _run(check: Callable[[Case], None], case: Recording) -> Exception | None:
    """Run the check; return what it raised by itself, as it may where it goes on after a wrong value."""
    with sandbox.isolated(case.device, case.task.seed):
        try:
            check(case)
        except WrongAnswer:  # it cannot go on
            pass
        except Busy:
            raise
        except Exception as error:
            case.notes.append(Note(f"the check stops: {type(error).__name__}", True))
            return error
    return None


def alike(one: list[Note], other: list[Note]) -> bool:
    """Return whether two recordings show the same: the same verdicts, and the same values where they are wrong."""
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Note, other: Note) -> bool:
    if (one.label, one.wrong) != (other.label, other.wrong):
        return False
    try:
        return not difference(one.got, other.got, rtol=1e-4, atol=1e-7, copied=True)
    except Exception:  # values that cannot be compared
        return False


def recognised(
    mistakes: Collection[Mistake], check: Callable[[Case], None], recording: Recording, device: torch.device
) -> Mistake | None:
    """Return the mistake that does what is recorded of an answer, on all inputs of `check`; None where it is none."""
    notes = recording.notes
    if notes[-1].label.startswith("does not end"):  # on a slow machine a mistake may not end either
        return None
    first = True
    with contextlib.ExitStack() as stack, contextlib.suppress(Busy):
        for mistake in mistakes:
            if mistake.answer is recording.answer:
                mistake.seen[device] = Seen(notes, whole=True)
            if first and device not in mistake.seen:
                stack.enter_context(_few_to_collect())
                first = False
            if does(check, recording.task, mistake, device, notes):
                return mistake
    return None


@contextlib.contextmanager
def _few_to_collect() -> Iterator[None]:
    """Keep what exists by now out of garbage collections, of which checks of memory make one for each answer.

    Only where an answer is tried: counting what is frozen takes as long as looking at each of a million objects.
    """
    gc.collect()
    freezes = not gc.get_freeze_count()  # else somebody else does
    if freezes:
        gc.freeze()
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()
