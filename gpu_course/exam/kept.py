"""State of an examination beside the progress: its items as generators and seeds, the answers, and the result.

What cannot be read is kept under another name, and a sentence says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_course import misconceptions, sealing
from gpu_course import solved as store
from gpu_course.exam.items import Question, Value
from gpu_course.exam.results import Marks, marks_of

__all__ = ["State", "answered", "forget", "load", "save", "seal", "set_aside"]

_KIND = "exam"


@dataclass
class State:
    """What is known of one examination.

    - `asked`: the generators with their seeds; `seal`: a checksum of all questions;
    - `answers`: by the number of the item; `marks`: None until the result was shown;
    - `believed`: the misconceptions behind wrong answers.
    """

    asked: list[tuple[str, int]]
    seal: str
    answers: dict[int, Value] = field(default_factory=dict)
    marks: Marks | None = None
    believed: list[str] = field(default_factory=list)


def seal(questions: Sequence[Question]) -> str:
    """Return a checksum of all that is asked, by which other items of the same names and seeds are known."""
    return sealing.checksum("\n".join(f"{one.text}\n{one.shown}\n{one.unit}\n{one.options}" for one in questions))


def load(kind: str) -> tuple[State | None, str]:
    """Return what is kept of the examination `kind`, None for nothing, and a remark on what could not be read."""
    stored = _all().get(kind)
    try:
        return (_read(stored) if stored else None), ""
    except (AttributeError, KeyError, TypeError, ValueError):
        return None, set_aside(kind)


def set_aside(kind: str) -> str:
    """Move a kept examination to another name, so that a new one can begin; return a remark on it."""
    number = 1
    while (name := f"{kind}-{number}") in _all():
        number += 1
    _change(lambda kept: {**{key: kept[key] for key in kept if key != kind}, name: kept.get(kind)})
    return (
        "The examination that was begun cannot go on: it is damaged, or of another version of the course. It is kept "
        f"as “{name}”, and a new one begins."
    )


def save(kind: str, state: State) -> None:
    """Replace what is kept by `state`."""
    answers = {str(at): each for at, each in state.answers.items()}
    made: dict[str, Any] = {"asked": state.asked, "seal": state.seal, "answers": answers}
    if state.marks is not None:
        made |= {"marks": state.marks, "believed": state.believed}
    _change(lambda kept: {**kept, kind: made})


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
    """Return what is kept as a State. Raises an error where it is damaged."""
    asked = [(str(name), int(seed)) for name, seed in state["asked"]]
    answers = {int(number): _value(value) for number, value in state["answers"].items()}
    if not answers.keys() <= {*range(1, len(asked) + 1)}:
        raise TypeError(f"answers to {sorted(answers)} of {len(asked)} items")
    if "marks" not in state:
        return State(asked, str(state["seal"]), answers)
    known = {one.id for one in [*misconceptions.every(), *misconceptions.slips()]}
    believed = [str(name) for name in state.get("believed", []) if name in known]
    return State(asked, state.get("seal", ""), answers, marks_of(state["marks"]), believed)


def _value(value: Any) -> Value:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{value!r} is no answer")
    return value
