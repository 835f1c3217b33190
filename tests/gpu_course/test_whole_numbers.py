"""Is a float refused, with one friendly sentence, by each exercise that promises an int, and NumPy's int accepted?"""

import functools
import inspect
import re

import numpy as np
import pytest

from course_utils import devices
from gpu_course.catalogue import registry
from gpu_course.checks import WrongAnswer, engine

EXERCISES = [e for e in registry() if not inspect.isclass(e.reference)]


def promised(exercise):
    """Return the annotation of what an answer returns, as text."""
    return inspect.formatannotation(inspect.signature(exercise.reference).return_annotation)


INTS = [e for e in EXERCISES if re.search(r"\bint\b", promised(e)) and "Callable" not in promised(e)]


def answers_with(exercise, kind):
    """Return an answer that does what the reference does, with `kind` in place of int wherever that occurs."""

    reference = exercise.reference  # it alone is sent to ranks: an exercise knows devices that they have not

    @functools.wraps(reference)
    def answer(*args):
        return changed(reference(*args), kind)

    return answer


def changed(value, kind):
    if type(value) is int:
        return kind(value)
    if type(value) in (list, tuple):
        return type(value)(changed(entry, kind) for entry in value)
    if type(value) is dict:
        return {changed(key, kind): changed(entry, kind) for key, entry in value.items()}
    return value


def test_ints_are_promised_by_some_exercises():
    assert {"four_parts", "recompiled", "moved"} <= {exercise.name for exercise in INTS}


@pytest.mark.parametrize("exercise", INTS, ids=lambda exercise: f"{exercise.lesson}-{exercise.name}")
def test_a_float_is_refused_where_an_int_is_promised(exercise, monkeypatch):
    monkeypatch.setattr(engine, "recognised", lambda *_: None)
    with pytest.raises(WrongAnswer, match=r"is \d+\.0, a float, expected the int|whole numbers|has the key \[1\.0\]"):
        exercise.examine(answers_with(exercise, float), devices.check_devices()[0])


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [e for e in INTS if e.lesson != "10"], ids=lambda e: f"{e.lesson}-{e.name}")
def test_an_int_of_numpy_is_an_int(exercise):
    exercise.examine(answers_with(exercise, np.int64), devices.check_devices()[0])
