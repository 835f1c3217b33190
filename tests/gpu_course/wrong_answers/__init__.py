"""Further wrong answers, those that no named mistake is: in each lesson's module, by the name of the exercise."""

import importlib
from collections.abc import Callable

from gpu_course.checks import Edit, Exercise

__all__ = ["stored"]


def stored(exercise: Exercise) -> list[tuple[str, Edit | Callable]]:
    """Return the stored wrong answers to an exercise, each behind a phrase that its message must hold."""
    return importlib.import_module(f"{__package__}.lesson{exercise.lesson}").WRONG.get(exercise.name, [])
