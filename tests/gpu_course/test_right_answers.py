"""Are right answers accepted that are written in another way than the reference?"""

import ast
import re

import pytest

from course_utils import devices
from gpu_course import catalogue
from gpu_course.checks import edges, source_of
from gpu_course.checks.answers import Whole

SIMPLE = ast.Assign | ast.AugAssign | ast.Return | ast.Expr
EXERCISES = list(catalogue.registry())
TRIED = [one for one in EXERCISES if not one.task.needs()]
STYLES = [(exercise, other) for exercise in TRIED for other in exercise.alternatives]


@pytest.mark.parametrize(("exercise", "other"), STYLES, ids=[f"{e.lesson}-{e.name}" for e, _ in STYLES])
def test_another_style_is_right_and_shown(exercise, other, capsys):
    exercise.examine(other.answer, devices.check_devices())
    exercise.solution()
    shown = capsys.readouterr().out
    assert f"Another style: {other.cost}." in shown and not other.cost.endswith(".")
    assert len(re.findall(rf"^(?:def|class) {exercise.name}\b", shown, re.MULTILINE)) == 1 + len(exercise.alternatives)


STORED = [
    pytest.param(
        exercise,
        answer,
        id=f"{exercise.lesson}-{exercise.name}-{at}",
        marks=[pytest.mark.slow, *[pytest.mark.mistakes] * (at == 0)],  # `make test-units` tries those of the lesson
    )
    for exercise in TRIED
    for at, (_, answer) in enumerate(exercise.stored("right"))
]
ENOUGH = 8  # of a budget that allows fewer, the text leaves no room


@pytest.mark.parametrize(("exercise", "answer"), STORED)
def test_a_stored_right_answer_is_accepted_with_room_to_spare(exercise, answer):
    full = used_up(exercise, answer)
    assert not full or full <= used_up(exercise, exercise.reference)  # as where the text says "once"


def used_up(exercise, answer):
    """Return the budgets, of those that leave room, of which `answer` uses more than nine tenths."""
    with edges.recording() as seen:
        exercise.examine(answer, devices.check_devices())
    return {(what, allowed) for what, used, allowed in seen.budgets if allowed >= ENOUGH and used > 0.9 * allowed}


@pytest.mark.slow
@pytest.mark.parametrize("exercise", TRIED, ids=lambda exercise: exercise.name)
def test_a_right_answer_may_call_its_parameters_otherwise(exercise):
    (tree,) = ast.parse(source_of(exercise.reference)).body
    for function in [tree] if isinstance(tree, ast.FunctionDef) else [one for one in tree.body if hasattr(one, "args")]:
        names = {one.arg for one in (*function.args.args, *function.args.kwonlyargs)} - {"self"}
        for node in ast.walk(function):
            for field in ("arg", "id"):
                if getattr(node, field, None) in names and not isinstance(node, ast.keyword):
                    setattr(node, field, f"its_{getattr(node, field)}")
    exercise.examine(Whole(ast.unparse(tree)).of(exercise.reference), devices.check_devices())


def test_three_right_answers_in_other_styles_are_kept_of_each_exercise():
    kept = {one.name: len(one.stored("right")) + len(one.alternatives) for one in EXERCISES}
    assert kept and [name for name, count in kept.items() if count < 3] == []


def test_every_exercise_has_another_style():
    assert [exercise.name for exercise in EXERCISES if not exercise.alternatives] == []


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_hints_lead_to_the_answer_and_are_not_it(exercise):
    """No hint holds most of what the reference's simple statements say."""
    lines = [node for node in ast.walk(ast.parse(source_of(exercise.reference))) if isinstance(node, SIMPLE)][1:]
    said = [plain(ast.unparse(getattr(line, "value", None) or line)) for line in lines]
    assert len(exercise.task.hints) >= 3
    for hint in map(plain, exercise.task.hints):
        assert sum(len(text) for text in said if text in hint) <= 0.6 * sum(map(len, said)), hint


def plain(text: str) -> str:
    """Return `text` without white space, quotes of one kind."""
    return re.sub(r"\s", "", text).replace('"', "'")
