"""Which of the known mistakes of an exercise is this one?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from course_utils.checks import Case

__all__ = ["mistake_of", "name_first"]


def name_first(case: Case, expected: object, got: object, mistakes: tuple[tuple[object, str, str], ...]) -> None:
    """Reject the answer with the first of the known mistakes (whether it is there, name, why it matters)."""
    for there, name, why in mistakes:
        if there:
            case.fail(name, why, expected=expected, got=got)


def mistake_of(
    answers: Sequence[object],
    given: Iterable[tuple],
    formulas: Iterable[tuple[str, str, Callable]],
    same: Callable[[object, object], bool],
) -> tuple[str, str]:
    """Return name and why of the first of the wrong formulas (name, why, formula) that gives `answers`, or two empty
    texts. A formula is called with each of the `given` inputs; `same` compares its result with the answer's."""
    given = list(given)
    for name, why, formula in formulas:
        if all(same(formula(*one), answer) for one, answer in zip(given, answers, strict=True)):
            return name, why
    return "", ""
