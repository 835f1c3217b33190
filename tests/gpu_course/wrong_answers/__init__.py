"""Further wrong answers, those that no named mistake is: in each lesson's files, by the name of the exercise."""

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from gpu_course.checks import Edit, Exercise, read_lesson

__all__ = ["stored"]


def stored(exercise: Exercise) -> list[tuple[str, Edit | Callable]]:
    """Return the stored wrong answers to an exercise, each behind a phrase that its message must hold.

    Edits of the reference stand in lesson02.diff, what is no edit in `WRONG` of lesson02.py.
    """
    rows = read_lesson(Path(__file__).with_name(f"lesson{exercise.lesson}.diff")).get(exercise.name, [])
    module = f"{__package__}.lesson{exercise.lesson}"
    written = importlib.import_module(module).WRONG.get(exercise.name, []) if find_spec(module) else []
    if new := [(row.name, made) for row, made in exercise.stored("wrong")]:
        return new
    return [*((row.name, one) for row in rows for one in row.answers), *written]
