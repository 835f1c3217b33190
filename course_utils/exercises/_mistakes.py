"""Which of the known mistakes of an exercise is this one?"""

from __future__ import annotations

from course_utils.exercise import Case

__all__ = ["name_first"]


def name_first(case: Case, expected: object, got: object, mistakes: tuple[tuple[object, str, str], ...]) -> None:
    """Reject the answer with the first of the known mistakes (whether it is there, name, why it matters)."""
    for there, name, why in mistakes:
        if there:
            case.fail(name, why, expected=expected, got=got)
