"""Known mistakes, each a wrong answer: an answer that does the same gets its name."""

from __future__ import annotations

import contextlib
import copy
import gc
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from gpu_course.checks import sandbox
from gpu_course.checks.case import Busy, Case, Finding, Task, WrongAnswer
from gpu_course.checks.comparison import difference


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
        index = len(self.notes)
        self.notes.append(Note(label, wrong, _kept(got) if wrong and got is not ... else None))
        if wrong and self._finds:
            self._finds = False
            self.finding = find()
            del self.notes[index + 1 :]  # to say more, the answer was called again
        if self._like is not None and not alike(self.notes[index:], self._like[index : index + 1]):
            self.differs = True
            raise WrongAnswer(self.task, "differs")


def _kept(value: Any) -> Any:
    """Return a copy of `value` on the CPU that nothing changes later; what cannot be copied counts as its type."""
    if isinstance(value, torch.Tensor):
        return str(value.device), value.detach() if value.is_meta else value.detach().cpu().clone()
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
    before = mistake.seen.get(device)
    if before and (before.whole or (like is not None and not alike(before.notes, like[: len(before.notes)]))):
        return before
    case = Recording(task, mistake.answer, device, like=like)
    _run(check, case)
    mistake.seen[device] = Seen(case.notes, whole=not case.differs)
    return mistake.seen[device]


def _run(check: Callable[[Case], None], case: Recording) -> Exception | None:
    """Run the check; return what it raised by itself, as it may where it goes on after a wrong value."""
    with sandbox.isolated(case.device, case.task.seed):
        try:
            check(case)
            if not any(note.wrong for note in case.notes):
                case.again()
                case.leaves_nothing()
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


# In what is said of a kernel: the line of the answer, and how the answer calls an array in shared memory.
_LAYOUT = re.compile(r" \(line \d+\)|`\w+`(?=\[\d+\] in shared memory)")


def _same(one: Note, other: Note) -> bool:
    if one.wrong != other.wrong or _LAYOUT.sub("", one.label) != _LAYOUT.sub("", other.label):
        return False
    try:
        return not difference(one.got, other.got, rtol=1e-4, atol=1e-7 + _rounding(one.got), copied=True)
    except Exception:  # values that cannot be compared
        return False


def _rounding(value: Any) -> float:
    """Return how far apart two ways to compute the floats of tensors may be: each order of additions rounds anew.

    What nearly cancels is as far apart as the largest numbers are.
    """
    if isinstance(value, list | tuple):
        return max(map(_rounding, value), default=0.0)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.is_meta:
        return 0.0
    sizes = value.detach().cpu().abs()
    finite = sizes[torch.isfinite(sizes)]
    return 1e-6 * finite.max().item() if finite.numel() else 0.0


# On a slow machine a mistake may not end either, and where something cannot be imported, no mistake can import it.
_NO_MISTAKE = "does not end", "endless", "raises ImportError", "raises ModuleNotFoundError"


def recognised(
    mistakes: Collection[Mistake], check: Callable[[Case], None], recording: Recording, device: torch.device
) -> Mistake | None:
    """Return the mistake that does what is recorded of an answer, on all inputs of `check`; None where it is none."""
    notes = recording.notes
    if notes[-1].label.startswith(_NO_MISTAKE):
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
    """Exclude existing objects from garbage collections: checks of memory collect once for each answer.

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
