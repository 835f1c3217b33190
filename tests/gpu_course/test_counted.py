"""Is each wrong answer counted under the name that its panel shows, and is nothing of the answer in it?"""

import re

import pytest
import torch

from gpu_course import classroom, lesson04, lesson05, solved
from gpu_course.checks import Case, WrongAnswer, exercise
from gpu_course.checks.counted import OTHER, error_name, static
from gpu_course.checks.mistakes import Mistake
from gpu_course.progress import progress


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))


@pytest.fixture
def made():
    @exercise(lesson="99", title="Double", minutes=1, difficulty=1, hints=("Multiply.",))
    def double(x: torch.Tensor) -> torch.Tensor:
        """Return twice `x`."""
        return 2 * x

    @double.checks
    def _(case: Case) -> None:
        x = torch.arange(3.0)
        got = case.call(x)
        case.fail_if(not isinstance(got, torch.Tensor), f"returns {got}, expected a tensor", got=got)
        for when, name in ((len(got) > 3, f"has {len(got)} numbers: {got.tolist()}"), (len(got) < 3, "loses numbers")):
            case.fail_if(when, name)
        case.equal(got, 2 * x)
        case.budget("copies", case.counts.copies, 0)

    double.mistakes.append(Mistake("returns the input", "twice of it was asked for", lambda x: x))
    return double


class Mine(Exception):
    """An error of the reader's own."""


def fails(error: Exception):
    raise error


WRONG = [
    (lambda x: "secret", "returns …, expected a tensor"),
    (lambda x: torch.full((7,), 12345.0), "has … numbers"),
    (lambda x: x[:2], "loses numbers"),
    (lambda x: x, "returns the input"),
    (lambda x: 3 * x, OTHER),
    (lambda x: x.mul_(2), "modifies its input"),
    (lambda x: fails(ValueError("secret")), "raises ValueError"),
    (lambda x: fails(Mine("secret")), "raises an error of its own"),
    (lambda x: [torch.set_default_dtype(torch.float64), 2 * x][1], "changes"),
]


@pytest.mark.parametrize("answer, name", WRONG, ids=[name for _, name in WRONG])
def test_a_wrong_answer_is_exported_under_the_name_of_its_panel_without_its_values(made, answer, name, monkeypatch):
    with pytest.raises(WrongAnswer):
        made.check(answer)
    ((lesson, exercise_, counted),) = solved.tries()
    assert (lesson, exercise_) == ("99", "double")
    assert (counted or OTHER).startswith(name) and "secret" not in counted and not re.search(r"\d", counted)
    person = classroom.read(progress.export("Ada", mistakes=True))
    assert person.tries == {("99", "double", counted or OTHER): 1}


def test_the_errors_of_libraries_have_names():
    assert error_name(torch.OutOfMemoryError("")) == "raises OutOfMemoryError"
    assert error_name(KeyError("secret")) == "raises KeyError" and error_name(Mine()) == "raises an error of its own"


def test_a_text_that_the_source_does_not_have_is_no_name():
    assert static("".join(["an", "other"])) == "" and static("loses numbers") == "loses numbers"


@pytest.mark.parametrize("found", [
    pytest.param(lesson05.train_step, marks=[pytest.mark.slow, pytest.mark.mistakes]), lesson04.load_checkpoint,
], ids=lambda found: found.name)  # fmt: skip
def test_stored_wrong_answers_have_names_that_their_panels_show(found, sim):
    answers = [answer for _, answer in found.stored("wrong")]
    assert len(answers) >= 9
    for answer in [*answers, *(mistake.answer for mistake in found.mistakes)]:
        with pytest.raises(WrongAnswer) as wrong:
            found.examine(answer, sim)
        finding = wrong.value.finding
        said = finding.name.replace("the result is right, but it takes", "takes more")
        assert finding.counted and all(part in said for part in re.split(r"…| than allowed", finding.counted))
