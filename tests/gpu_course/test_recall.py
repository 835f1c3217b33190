"""Does each idea come back after one, three and six lessons, and does what was missed come back until it is known?"""

import pytest

from gpu_course import exam, recall

LESSONS = [f"{number:02}" for number in range(2, 14)]


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    """Give each test a progress file of its own, and no questions that another test has drawn."""
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(recall, "_PAPERS", {})


def lesson_of(name: str) -> int:
    return int(exam.items.BANK[name].lesson)


def test_each_lesson_asks_three_questions_on_earlier_lessons():
    for lesson in LESSONS:
        names = recall.plan(lesson)
        assert len(set(names)) == len(names) == 3
        assert all(lesson_of(name) < int(lesson) and exam.items.BANK[name].short for name in names)


def test_the_idea_of_each_lesson_comes_back_after_one_three_and_six_lessons():
    asked = {int(lesson): recall.plan(lesson) for lesson in LESSONS}
    for number in range(1, 13):
        (name,) = {name for name in asked[number + 1] if lesson_of(name) == number} & {
            recall.plan(f"{number + 1:02}")[0]
        }
        later = [number + gap for gap in recall.GAPS if number + gap in asked]
        assert all(name in asked[lesson] for lesson in later), (number, name)


def test_what_was_missed_is_asked_again_until_it_is_known(sim):
    first = recall.ask("06")
    item = first.drawn[1][1]
    wrong = 1 + next(at for at, option in enumerate(item.options) if option != item.answer) if item.options else -1.0
    first.answer(2, wrong)
    missed = first.drawn[1][0].name
    again = recall.ask("09")
    assert again.drawn[0][0].name == missed and missed not in recall.plan("09")[:1]
    item = again.drawn[0][1]
    again.answer(1, item.options.index(item.answer) + 1 if item.options else item.answer)
    assert recall._state()["missed"] == []


def test_the_same_call_asks_the_same_until_all_is_answered_and_then_has_other_numbers(sim):
    first = recall.ask("04")
    assert recall.ask("04") is first
    texts = str(first)
    for number, (_, item) in enumerate(first.drawn, 1):
        first.answer(number, item.options.index(item.answer) + 1 if item.options else item.answer)
    second = recall.ask("04")
    assert [found.name for found, _ in second.drawn] == [found.name for found, _ in first.drawn]
    assert str(second) != texts


def test_a_wrong_answer_gets_a_sentence_and_the_cell_to_read_again(sim):
    paper = recall.ask("05")
    for number, (_, item) in enumerate(paper.drawn, 1):
        value, name = next(iter(item.wrong.items()))
        said = paper.answer(number, item.options.index(value) + 1 if item.options else value)
        assert said.startswith("The answer is") and ("Read again: lesson" in said or name in ("off-by-one", "left-out"))


@pytest.mark.parametrize("lesson", ["01", "5", 5, "", "aa"])
def test_a_lesson_without_earlier_ones_is_refused(lesson):
    with pytest.raises(ValueError, match="from '02' on"):
        recall.ask(lesson)


def test_each_lesson_makes_the_three_items_that_it_asks_and_no_others(sim, monkeypatch):
    """How long an item takes is measured in `benchmarks.costs`."""
    made, item = [], exam.items.Generator.item
    monkeypatch.setattr(exam.items.Generator, "item", lambda self, seed: made.append(self.name) or item(self, seed))
    for lesson in LESSONS:
        recall.ask(lesson)
    assert made == [name for lesson in LESSONS for name in recall.plan(lesson)]
