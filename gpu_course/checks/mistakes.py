"""Which known mistake is this? A mistake is the wrong answer itself; an answer that does the same gets its name."""

from __future__ import annotations
import __future__

import copy
import inspect
import linecache
import re
import textwrap
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from gpu_course.checks import sandbox
from gpu_course.checks.case import Case, Task, WrongAnswer
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
        source = source_of(reference)
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
    return source[re.search(r"^(def|class) ", source, re.MULTILINE).start() :].rstrip() + "\n"


@dataclass(frozen=True)
class Alternative:
    """A right answer in another style, its source, and what it costs or when it is to be preferred."""

    cost: str
    answer: Any
    source: str


@dataclass
class Mistake:
    """A wrong answer that people give, its name, and why it matters."""

    name: str
    why: str
    answer: Any
    seen: dict[torch.device, list[Note]] = field(default_factory=dict)  # what it was seen to do


@dataclass(frozen=True)
class Note:
    """One verdict of a check: what was looked at, whether it was wrong, and which value the answer gave there."""

    label: str
    wrong: bool
    got: Any = None


class _Stop(Exception):
    """Ends a recording: the check cannot go on, or the answer is not the one that is looked for."""


class _Recorder(Case):
    """A case that notes each verdict and goes on, so that what an answer does on all inputs is seen.

    It ends early where the notes are no longer those of `like`.
    """

    def __init__(self, task: Task, answer: Callable, device: torch.device, like: list[Note] | None) -> None:
        super().__init__(task, answer, device)
        self.like, self.notes = like, []

    def _note(self, label: str, wrong: bool, got: Any = None) -> None:
        self.notes.append(Note(label, wrong, _kept(got) if wrong and got is not ... else None))
        at = len(self.notes) - 1
        if self.like is not None and not (at < len(self.like) and _same(self.like[at], self.notes[at])):
            raise _Stop

    def fail(self, name: str, why: str = "", *, expected: Any = ..., got: Any = ...) -> None:
        self._note(name.partition("\n")[0], True, got)
        raise _Stop

    def instead(self, when: Any, name: str, why: str = "", *, expected: Any = ..., got: Any = ...) -> None:
        self._note(name if when else "", bool(when), got)

    def equal(self, got: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-6, why: str = "") -> None:
        self._note("equal", bool(difference(got, expected, rtol=rtol, atol=atol)), got)

    def budget(self, what: str, used: int, allowed: int, why: str = "") -> None:
        self._note(what, used > allowed)


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


def recorded(
    check: Callable[[Case], None], task: Task, answer: Any, device: torch.device, like: list[Note] | None = None
) -> list[Note]:
    """Return all that `check` finds of `answer` on `device`, up to the first note that is not that of `like`."""
    case = _Recorder(task, answer, device, like)
    with sandbox.isolated(device, task.seed):
        try:
            check(case)
        except (_Stop, WrongAnswer):
            pass
        except Exception as error:  # the check went on after a wrong value, as it never does for a reader
            case.notes.append(Note(f"the check stops: {type(error).__name__}", True))
    return case.notes


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
    mistakes: Iterable[Mistake], check: Callable[[Case], None], task: Task, answer: Any, device: torch.device
) -> Mistake | None:
    """Return the mistake that does what `answer` does, on all inputs of `check` on `device`; None where it is none."""
    notes = None
    for mistake in mistakes:
        notes = recorded(check, task, answer, device) if notes is None else notes
        if notes and notes[-1].label.startswith("does not end"):  # on a slow machine a mistake may not end either
            return None
        known = mistake.seen.get(device, [])
        if all(_same(a, b) for a, b in zip(known, notes, strict=False)):  # else it was seen to do something else
            known = mistake.seen[device] = recorded(check, task, mistake.answer, device, like=notes)
        if alike(notes, known):
            return mistake
    return None
