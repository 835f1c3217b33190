"""What is kept of an examination beside the progress, and what of it can be read?

Its items and answers, and once its result was shown also that and every item with the right answer. What cannot be read
is kept under another name, and a sentence says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_course import misconceptions, sealing
from gpu_course import solved as store
from gpu_course.exam.items import Question, Value
from gpu_course.exam.paper import Judged
from gpu_course.exam.results import Marks, marks_of

__all__ = ["State", "answered", "forget", "load", "save", "seal", "set_aside"]

_KIND = "exam"
_OTHER = "it was begun in another version of the course, whose items are not the same"


class _Other(Exception):
    """What is kept belongs to another version of the course."""


@dataclass
class State:
    """What is known of one examination.

    - `asked`: the names of the generators; their seeds, which give the answers, stand in the file alone;
    - `seal`: a checksum of all questions;
    - `answers`: by the number of the item; `marks`: None until the result was shown;
    - `believed`: the misconceptions behind wrong answers; `judged`: every item with its right answer, in the end.
    """

    asked: list[str]
    seal: str
    answers: dict[int, Value] = field(default_factory=dict)
    marks: Marks | None = None
    believed: list[str] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)


def seal(questions: Sequence[Question]) -> str:
    """Return a checksum of all that is asked, by which other items of the same names and seeds are known."""
    return sealing.checksum("\n".join(f"{one.text}\n{one.shown}\n{one.unit}\n{one.options}" for one in questions))


def load(kind: str) -> tuple[State | None, str]:
    """Return what is kept of the examination `kind`, None for nothing, and a remark on what could not be read."""
    stored = _all().get(kind)
    if not stored:
        return None, ""
    try:
        return _read(stored), ""
    except _Other:
        return None, set_aside(kind)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None, set_aside(kind, "it is damaged")


def set_aside(kind: str, why: str = _OTHER) -> str:
    """Keep what there is of an examination under another name, so that a new one can begin; return a remark on it."""
    number = 1
    while (name := f"{kind}-{number}") in _all():
        number += 1
    _change(lambda kept: {**{key: kept[key] for key in kept if key != kind}, name: kept.get(kind)})
    return f"The examination that was begun cannot go on: {why}. It is kept as “{name}”, and a new one begins."


def save(kind: str, state: State, asked: Sequence[tuple[str, int]] | None = None) -> None:
    """Keep `state`, in place of what there was, whose generators and seeds stay unless `asked` says others."""
    made = {"seal": state.seal, "answers": {str(at): each for at, each in state.answers.items()}}
    if state.marks is not None:
        rows = [asdict(one) for one in state.judged]
        made |= {"marks": {skill: list(each) for skill, each in state.marks.items()}}
        made |= {"believed": state.believed, "judged": rows}

    def change(kept: dict[str, Any]) -> dict[str, Any]:
        before = kept.get(kind)
        stood = before.get("asked", []) if isinstance(before, dict) else []
        return {**kept, kind: {"asked": stood if asked is None else list(asked), **made}}

    _change(change)


def answered(kind: str, of: str, number: int, value: Value) -> None:
    """Keep one more answer to the questions with the seal `of`; once their result was shown nothing changes."""

    def change(kept: dict[str, Any]) -> dict[str, Any]:
        state = kept.get(kind)
        if not isinstance(state, dict) or state.get("seal") != of or "marks" in state:
            return kept
        return {**kept, kind: {**state, "answers": {**state["answers"], str(number): value}}}

    _change(change)


def forget(kind: str) -> None:
    """Forget the items and the answers."""
    _change(lambda kept: {key: kept[key] for key in kept if key != kind})


def _all() -> dict[str, Any]:
    return store.kept(_KIND, dict) or {}


def _change(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    store.keep(_KIND, lambda kept: change(kept or {}), dict)


def _read(state: dict[str, Any]) -> State:
    """Return what is kept as a State. Raises an error where it is damaged, or cannot be gone on with."""
    asked = [name for name, _ in pairs(state)]
    answers = {int(number): _value(value) for number, value in state["answers"].items()}
    if not answers.keys() <= {*range(1, len(asked) + 1)}:
        raise TypeError(f"answers to {sorted(answers)} of {len(asked)} items")
    if "marks" in state and (answers or not asked):  # without items it comes from a line
        known = {one.id for one in [*misconceptions.every(), *misconceptions.slips()]}
        believed = [str(name) for name in state.get("believed", []) if name in known]
        return State(asked, state.get("seal", ""), answers, marks_of(state["marks"]), believed, _judged(state))
    if "seal" not in state:
        raise _Other
    return State(asked, str(state["seal"]), answers)


def pairs(state: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the generators and seeds of what is kept of an examination. Raises an error where it is damaged."""
    return [(str(name), int(seed)) for name, seed in state["asked"]]


def _value(value: Any) -> Value:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{value!r} is no answer")
    return value


def _judged(state: dict[str, Any]) -> list[Judged]:
    """Return the items of a result; none where they are damaged or of another version, and the marks remain."""
    try:
        return [_row(row) for row in state.get("judged", [])]
    except (AttributeError, KeyError, TypeError, ValueError):
        return []


def _row(row: dict[str, Any]) -> Judged:
    asked = row["question"]
    question = Question(str(asked["text"]), str(asked["shown"]), str(asked["unit"]), tuple(map(str, asked["options"])))
    for name in filter(None, (row["belief"], row["about"])):
        misconceptions.get(name)
    given = None if row["given"] is None else _value(row["given"])
    steps = tuple(map(str, row["steps"]))
    return Judged(question, given, bool(row["right"]), _value(row["answer"]), steps, row["belief"], row["about"])
