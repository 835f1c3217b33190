"""Further wrong answers, those that no named mistake is: in each lesson's files, by the name of the exercise."""

import importlib
from collections.abc import Callable
from pathlib import Path

from gpu_course.checks import Edit, Exercise, read

__all__ = ["stored"]


def stored(exercise: Exercise) -> list[tuple[str, Edit | Callable]]:
    """Return the stored wrong answers to an exercise, each behind a phrase that its message must hold.

    Edits of the reference stand in lesson02.diff, what is no edit in `WRONG` of lesson02.py.
    """
    rows = read(Path(__file__).with_name(f"lesson{exercise.lesson}.diff")).get(exercise.name, [])
    written = importlib.import_module(f"{__package__}.lesson{exercise.lesson}").WRONG.get(exercise.name, [])
    return [*((row.name, one) for row in rows for one in row.edits), *written]
