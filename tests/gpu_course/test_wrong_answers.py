"""Does every exercise reject each stored wrong answer by name, and agree with its lesson?

That it accepts its reference is asked in `tests/notebooks/test_references.py`.
"""

import ast
import copy
import dataclasses
import functools
import importlib
import inspect
import itertools
import linecache
import re
import textwrap

import pytest
import torch

from gpu_course.catalogue import registry
from gpu_course.checks import Exercise, WrongAnswer, alike, engine
from tests.notebooks.test_notebooks import stub_of
from tests.notebooks.test_references import EXERCISES as TRIED
from tests.notebooks.test_references import PLACES
from tools import notebooks

# of wrong answers: a checkpoint without a graph, the deviation of a single row
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad", r"ignore:std\(\)")
EXERCISES = list(registry())
LATE = pytest.mark.slow, pytest.mark.mistakes
COMPARED = pytest.mark.parametrize("compared", [False, pytest.param(True, marks=LATE)], ids=["alone", "compared"])
LESSONS = {notebooks.number(path): path for path in notebooks.lessons()}


KINDS = {(inspect.isclass(e.reference), e.task.simulated, "ranks" in e.task.where): e for e in reversed(EXERCISES)}


def rejected(exercise, answer):
    """Return the message of the check, which must reject the answer."""
    with pytest.raises(WrongAnswer) as caught:
        exercise.examine(answer, PLACES)
    return str(caught.value)


def wrong_answers(exercise):
    """Return each wrong answer with words of its message, and whether it is compared with the known mistakes.

    The mistakes come first: other answers are compared with what each was seen to do then. One mistake is tried each
    time, the others by `make test-mistakes`. Of other answers it is the first: to compare it with all mistakes takes
    ten times as long as to reject it, and is left to that command. None where ranks or the simulated clock take seconds
    for what others do in milliseconds.
    """
    ranks, simulated = "ranks" in exercise.task.where, exercise.task.simulated
    named = {mistake.name: mistake for mistake in reversed(exercise.mistakes)}
    names = list(dict.fromkeys(mistake.name for mistake in exercise.mistakes))
    late, slow = LATE[: 1 if simulated else 2], LATE[:1]
    rows = [
        row(mistake.name, mistake.answer, True, name=mistake.name, marks=() if mistake is named[names[0]] else late)
        for mistake in exercise.mistakes
    ]
    for at, (stored, answer) in enumerate(exercise.stored("wrong")):
        phrase = stored.name
        first = at == 0 and not (ranks or simulated)
        if first and phrase in names:  # which only comparing it gives
            rows.append(row(phrase, answer, True, name=at, marks=()))
            continue
        rows.append(row(phrase, answer, True, name=at, marks=late if first else slow))
        if first or ((ranks or simulated) and at < 3):
            rows.append(row(phrase, answer, False, name=f"{at} alone", marks=() if first else slow))
    return rows


def row(*values, name, marks):
    return pytest.param(*values, id=str(name), marks=marks)


class Tried:
    """What is tried of an exercise: a class for each, which one worker runs, so that it tries each mistake once."""

    of: Exercise

    @pytest.fixture
    def exercise(self):
        return self.of

    def pytest_generate_tests(self, metafunc):
        """Give the tests that ask for one a wrong answer."""
        if "words" in metafunc.fixturenames:
            metafunc.parametrize(("words", "answer", "compared"), wrong_answers(self.of))

    @pytest.fixture
    def _alone(self, compared, monkeypatch):
        """Compare answers with the known mistakes, each of which is tried for that, only where this is asked."""
        if not compared:
            monkeypatch.setattr(engine, "recognised", lambda *_: None)

    @pytest.mark.usefixtures("_alone")
    def test_a_wrong_answer_is_rejected_under_its_name_or_with_its_phrase(self, exercise, words, answer):
        assert words in rejected(exercise, answer)

    @pytest.mark.slow
    @pytest.mark.mistakes
    def test_no_two_mistakes_and_no_mistake_and_the_right_answer_look_alike(self, exercise):
        """Alike on all inputs of the check: else a message would name one for the other. The reference passes."""
        place = torch.device("sim", 0) if exercise.task.simulated else PLACES[0]
        seen = [(mistake, exercise.recording(mistake, place)) for mistake in exercise.mistakes]
        assert all(any(note.wrong for note in notes) for _, notes in seen)
        pairs = [(a.name, b.name) for (a, one), (b, other) in itertools.combinations(seen, 2) if alike(one, other)]
        assert [pair for pair in pairs if pair[0] != pair[1]] == []

    @COMPARED
    @pytest.mark.usefixtures("_alone")
    def test_answers_of_another_type_are_rejected(self, exercise):
        answers = [None, 3, int, lambda *args: None, changed(exercise, "return object()")]
        long = (exercise.task.simulated or exercise.task.where) and exercise not in KINDS.values()
        for answer in answers[: 3 if long else 5]:
            assert rejected(exercise, answer)

    def test_hints_solution_and_numbers_are_there(self, exercise, capsys):
        exercise.solution()
        kind = "class" if inspect.isclass(exercise.reference) else "def"
        assert re.match(rf"{kind} {exercise.name}[(:]", capsys.readouterr().out)
        exercise._hinted = 0
        for number, hint in enumerate(exercise.task.hints, start=1):
            exercise.hint()
            assert f"Hint {number} of {len(exercise.task.hints)}: {hint}" in capsys.readouterr().out
        exercise._hinted = 0
        assert len(set(exercise.task.hints)) == len(exercise.task.hints) >= 2

    def test_stub_and_reference_have_the_same_signature_and_docstring(self, exercise):
        stub = stubs(LESSONS[exercise.lesson])[exercise.name]
        reference = ast.parse(inspect.getsource(exercise.reference)).body[0]
        assert signatures(stub) == signatures(reference)
        assert ast.get_docstring(stub) == ast.get_docstring(reference)
        made, source = {"torch": torch, "nn": torch.nn}, f"from __future__ import annotations\n{ast.unparse(stub)}"
        file = f"<stub of {exercise.name}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), made)
        assert exercise.untouched(made[exercise.name])


class Repaired(Tried):
    """What is tried of an exercise that is a repair."""

    @COMPARED
    @pytest.mark.usefixtures("_alone")
    def test_the_broken_program_that_is_to_be_repaired_is_wrong(self, exercise):
        assert rejected(exercise, exercise.given) and exercise.untouched(exercise.given)
        assert not exercise.untouched(exercise.reference)


for one in TRIED:
    globals()[f"Test{one.lesson}-{one.name}"] = type(one.name, (Repaired if one.given else Tried,), {"of": one})


def test_three_mistakes_or_wrong_answers_are_stored_of_each_exercise():
    names = {e: {one.name for one in e.mistakes} | {row.name for row, _ in e.stored("wrong")} for e in EXERCISES}
    assert all(mistake.why for e in EXERCISES for mistake in e.mistakes)
    assert names and [e.name for e, found in names.items() if len(found) < 3] == []


@pytest.mark.parametrize("exercise", KINDS.values(), ids=lambda e: f"{e.lesson}-{e.name}")
def test_an_endless_answer_is_ended_in_each_kind_of_check(exercise, monkeypatch):
    assert len(KINDS) == 4
    monkeypatch.setattr(exercise, "task", dataclasses.replace(exercise.task, limit_s=0.3))
    assert "does not end" in rejected(exercise, changed(exercise, "while True: pass"))


def changed(exercise, line):
    """Return an answer with the reference's parameters whose only line, in each method of a class, is `line`."""
    node = copy.deepcopy(ast.parse(textwrap.dedent(inspect.getsource(exercise.reference))).body[0])
    node.decorator_list = []
    for function in [found for found in ast.walk(node) if isinstance(found, ast.FunctionDef)]:
        if function.name == "__init__" and "return" in line:
            continue
        function.body = ast.parse(f"def f():\n    {line}").body[0].body
    made = dict(vars(importlib.import_module(exercise.reference.__module__)))
    exec(f"from __future__ import annotations\n{ast.unparse(node)}", made)
    return made[exercise.name]


@functools.cache
def stubs(path):
    """Return the stubs of a lesson, by name."""
    found = [stub_of(cell.source) for cell in notebooks.read(path).cells if cell.cell_type == "code"]
    return {stub.name: stub for stub in found if stub}


def test_lessons_and_package_have_the_same_exercises():
    in_package = {(exercise.lesson, exercise.name) for exercise in EXERCISES}
    cells = [cell.source for path in LESSONS.values() for cell in notebooks.read(path).cells]
    checked = {(found["lesson"], found["name"]) for found in map(notebooks.CHECK.match, cells) if found}
    assert in_package == checked != set()
    assert {name for path in LESSONS.values() for name in stubs(path)} == {name for _, name in checked}


def signatures(node):
    """Return name, arguments and result of a function, or of the public methods of a class with its bases."""
    if isinstance(node, ast.ClassDef):
        public = [method for method in node.body if isinstance(method, ast.FunctionDef) and _public(method.name)]
        return [ast.unparse(base) for base in node.bases], [signatures(method) for method in public]
    return node.name, ast.unparse(node.args), ast.unparse(node.returns or ast.Constant(None))


def _public(name):
    return name.startswith("__") or not name.startswith("_")
