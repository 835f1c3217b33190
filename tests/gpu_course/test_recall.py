"""Does each idea come back after one, three and six lessons, and does what was missed come back until it is known?"""

import json

import pytest

from gpu_course import exam, recall, solved
from gpu_course.exam.items import Item
from tools import notebooks

LESSONS = [one for path in notebooks.lessons() if (one := notebooks.number(path)).isdecimal() and one >= "02"]


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    """Give each test a progress file of its own, and no questions that another test has drawn."""
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(recall, "_PAPERS", {})
    return tmp_path / "progress.json"


def item_of(lesson: str, missed: list[str], at: int) -> Item:
    """Return the item that the first turn of a lesson asks at a place."""
    return exam.drawn([(recall.plan(lesson, missed)[at], 1000 * int(lesson))])[0][1]


def answer(paper: exam.Paper, number: int, item: Item) -> str:
    """Answer rightly."""
    return paper.answer(number, item.options.index(item.answer) + 1 if item.options else item.answer)


def lesson_of(name: str) -> int:
    return int(exam.items.BANK[name].lesson)


def test_each_lesson_asks_three_questions_on_earlier_lessons():
    for lesson in LESSONS:
        names = recall.plan(lesson)
        assert len(set(names)) == len(names) == 3
        assert all(lesson_of(name) < int(lesson) and exam.items.BANK[name].short for name in names)


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_each_lesson_comes_back_after_one_three_and_six_lessons(turn):
    asked = {int(lesson): [lesson_of(name) for name in recall.plan(lesson, turn=turn)] for lesson in LESSONS}
    assert list(asked) == list(recall.LESSONS)
    for number in range(1, 13):
        later = [number + gap for gap in recall.GAPS if number + gap in asked]
        assert later and all(number in asked[lesson] for lesson in later), number


def test_every_short_question_is_planned_within_two_turns_and_most_in_the_first():
    short = {found.name for found in exam.bank() if found.short}
    turns = [{name for lesson in LESSONS for name in recall.plan(lesson, turn=turn)} for turn in (0, 1)]
    assert turns[0] | turns[1] == short
    assert len(turns[0]) >= 0.9 * len(short)  # other places bring back the only question of a lesson


def test_missed_questions_leave_two_of_three_places_to_others():
    missed = [found.name for found in exam.bank() if found.short and found.lesson in ("01", "02")]
    for lesson in LESSONS[1:]:
        names = recall.plan(lesson, missed)
        assert names[0] == missed[0] and names[1:] == [name for name in recall.plan(lesson) if name != missed[0]][:2]


def test_what_was_missed_is_asked_again_until_it_is_known(sim):
    first = recall.ask("06")
    missed = recall.plan("06")[1]
    assert first.answer(2, "?").startswith("The answer is")
    again = recall.ask("09")
    assert recall.plan("09", [missed])[0] == missed and missed not in recall.plan("09")[:1]
    answer(again, 1, item_of("09", [missed], 0))
    assert recall._state(solved.kept("recall"))["missed"] == []


def test_the_same_call_asks_the_same_until_all_is_answered_and_then_has_other_numbers(sim):
    first = recall.ask("04")
    assert recall.ask("04") is first
    for number in (1, 2, 3):
        assert answer(first, number, item_of("04", [], number - 1)).startswith("Right: ")
    assert {one.text for one in recall.ask("04").questions} & {one.text for one in first.questions} == set()
    assert recall.plan("04", turn=1) != recall.plan("04")


def test_a_wrong_answer_gets_a_sentence_and_the_cell_to_read_again(sim):
    paper = recall.ask("05")
    for number in (1, 2, 3):
        item = item_of("05", [], number - 1)
        value = next(iter(item.wrong))
        said = paper.answer(number, item.options.index(value) + 1 if item.options else value)
        assert said.startswith("That is wrong. The answer is") and "Read again: lesson" in said


@pytest.mark.parametrize(
    "kept", [{"missed": None}, {"missed": [1, "nobody"], "05": "two"}, [1], {"missed": {"a": 1}, "05": -1}]
)
def test_damaged_and_older_states_are_read_as_far_as_they_can_be(kept, sim, path):
    path.with_name("progress.recall.json").write_text(json.dumps(kept), encoding="utf-8")
    assert recall.ask("05").answer(1, "?").startswith("The answer is")
    assert recall._state(solved.kept("recall"))["missed"][-1] == recall.plan("05")[0]


@pytest.mark.parametrize("lesson", ["01", "5", 5, "", "aa"])
def test_a_lesson_without_earlier_ones_is_refused(lesson):
    with pytest.raises(ValueError, match="from '02' on"):
        recall.ask(lesson)


def test_each_lesson_makes_the_three_items_that_it_asks_and_no_others(sim, monkeypatch):
    made, item = [], exam.items.Generator.item
    monkeypatch.setattr(exam.items.Generator, "item", lambda self, seed: made.append(self.name) or item(self, seed))
    for lesson in LESSONS:
        recall.ask(lesson)
    assert made == [name for lesson in LESSONS for name in recall.plan(lesson)]
