"""Has each item one right answer, found again by running what it describes, and is an examination kept and judged?"""

import random
import sys

import pytest

from gpu_course import exam, misconceptions, progress, solved
from gpu_course.exam import items, paper, results
from gpu_course.exam.items import CHOICES, Generator, Item

BANK = exam.bank()
KNOWN = {one.id for one in [*misconceptions.every(), *misconceptions.slips()]}
DRAWS, MANY, VARIANTS = 10, 200, 30


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    """Give each test a progress file of its own, and no paper that another test has drawn."""
    path = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    monkeypatch.setattr(exam, "_PAPERS", {})
    return path


def test_the_bank_has_sixty_generators_in_six_skills():
    by_skill = {skill: [found.name for found in BANK if found.skill == skill] for skill in exam.SKILLS}
    assert len(BANK) == sum(map(len, by_skill.values())) >= 60
    assert min(map(len, by_skill.values())) >= 10
    assert {name for found in BANK for name in found.about} <= KNOWN
    assert all(isinstance(misconceptions.get(found.about[0]), misconceptions.Misconception) for found in BANK)


def one_right_answer(item: Item) -> None:
    """Fail unless the item has one right answer, which its proof finds too, and wrong ones that all differ from it."""
    proven = item.proof()
    assert proven == pytest.approx(item.answer, rel=1e-6) if isinstance(proven, float) else proven == item.answer
    assert item.right(item.answer) and not any(item.right(value) for value in item.wrong)
    assert set(item.wrong.values()) <= KNOWN
    if isinstance(item.answer, str):
        assert len(set(item.options)) == len(item.options) == CHOICES
        assert {item.answer, *item.wrong} == set(item.options)
    else:
        assert item.options == () and item.wrong
    assert all(item.misconception(value) for value in item.wrong) and item.misconception(item.answer) == ""


def drawn_often(found: Generator, draws: int) -> set[str]:
    """Draw that often, check each item, and return the different ones as text."""
    steps, texts = set(), set()
    for seed in range(draws):
        item = found.item(seed)
        one_right_answer(item)
        steps.add(len(item.steps))
        texts.add(f"{item.text}\n{item.shown}\n{sorted(item.options)}")
    assert len(steps) == 1, "its variants take different numbers of steps"
    return texts


@pytest.mark.parametrize("found", BANK, ids=lambda found: found.name)
def test_each_draw_has_one_right_answer_and_the_same_number_of_steps(found, sim):
    drawn_often(found, DRAWS)


@pytest.mark.slow
@pytest.mark.parametrize("found", BANK, ids=lambda found: found.name)
def test_many_draws_have_one_right_answer_and_give_many_variants(found, sim):
    assert len(drawn_often(found, MANY)) >= VARIANTS


def test_a_seed_always_gives_the_same_item(sim):
    for found in BANK[::6]:
        first, again = found.item(3), found.item(3)
        assert (first.text, first.shown, first.answer, first.options) == (
            again.text,
            again.shown,
            again.answer,
            again.options,
        )


def made(skill: str, number: int) -> tuple[Generator, Item]:
    """Return an item whose answer is `number`; who doubles it believes that elements are bytes."""
    item = items.number("How many?", number, {2.0 * number: "elements-are-bytes"}, ("Count.",))
    return Generator(f"{skill}_{number}", skill, ("elements-are-bytes",), True, False, lambda draw: item), item


@pytest.fixture
def small(monkeypatch):
    """Make an examination of two items of each skill, with the answers 1 to 12."""
    drawn = [made(skill, 2 * at + one) for at, skill in enumerate(exam.SKILLS) for one in (1, 2)]
    monkeypatch.setattr(exam, "_chosen", lambda: [(found.name, 0) for found, _ in drawn])
    monkeypatch.setattr(exam, "drawn", lambda asked: drawn)
    return drawn


def test_an_examination_has_two_items_of_each_skill():
    chosen = [name for name, _ in exam._chosen()]
    skills = [items.BANK[name].skill for name in chosen]
    assert len(set(chosen)) == 12 and {skill: skills.count(skill) for skill in skills} == dict.fromkeys(exam.SKILLS, 2)


def test_the_examination_draws_nothing_before_it_is_looked_at(monkeypatch):
    monkeypatch.setattr(exam, "drawn", lambda asked: pytest.fail("drawn"))
    assert str(exam.before()) == (
        "Examination before the course: 12 items in six skills, 15 minutes.\n"
        "`print(exam.before().paper)` shows them as text."
    )


def test_answers_are_kept_and_judged_by_skill_with_the_cells_to_read(small, monkeypatch):
    exam.before().answer(1, 1)
    exam.before().answer(2, 4)
    monkeypatch.setattr(exam, "_PAPERS", {})  # another kernel
    for number in range(3, 13):
        exam.before().answer(number, number)
    found = exam.before().result()
    assert found.marks == {"place": (1, 2), **{skill: (2, 2) for skill in exam.SKILLS[1:]}}
    assert found.gain is None and "lesson 02" in found.read["place"][0] and list(found.read) == ["place"]
    for number in range(1, 13):
        exam.after().answer(number, number)
    after = exam.after().result()
    assert after.gain == pytest.approx(1 / 12) and "Gain: +8 % of all items." in str(after)
    assert "place     1 of 2  2 of 2" in str(after)


def test_no_answer_says_whether_it_was_right_and_the_result_does(small):
    assert exam.before().answer(1, 1) == exam.before().answer(2, 99).replace("2", "1") == "Answer 1 is kept."


def test_reset_forgets_the_items_and_the_answers(small):
    exam.before().answer(1, 1)
    exam.before().reset()
    assert exam.before().paper.answers == {}


@pytest.mark.parametrize("number, value, phrase", [(0, 1, "number must be 1 to 12"), (13, 1, "12"), (1, "x", "value")])
def test_wrong_arguments_are_named(small, number, value, phrase):
    with pytest.raises((TypeError, ValueError), match=phrase):
        exam.before().answer(number, value)


def test_an_option_is_named_by_its_number_and_a_wrong_one_is_answered_by_what_is_so():
    wrong = dict.fromkeys(["b", "c", "d", "e"], "to-in-place")
    item = items.choice(random.Random(0), "Which?", "a", wrong, ("Look.",))
    asked = paper.Paper("Title", [(made("place", 1)[0], item)])
    right = item.options.index("a") + 1
    assert asked.answer(1, right) == "Right: a. Look."
    said = asked.answer(1, right % 5 + 1)
    assert said.startswith("The answer is a. Look. `tensor.to` returns") and "Read again: lesson 02" in said
    with pytest.raises(ValueError, match="the number of an option, 1 to 5"):
        asked.answer(1, 6)
    assert "   1) " in str(asked) and "<li>a</li>" in asked._repr_html_()


def test_without_ipywidgets_the_text_remains(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert set(exam.before()._repr_mimebundle_()) == {"text/plain"}
    assert set(exam.before().paper._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_fields_take_answers_and_a_button_shows_the_result(small):
    box = exam.before()._controls()
    box.children[1].click()
    items_box, end, shown = box.children
    fields = [child for child in items_box.children if type(child).__name__ == "Text"]
    fields[0].value, fields[1].value = "1", "two"
    assert exam.before().paper.answers == {1: 1.0}
    fields[1].value = "1,5"  # as in a guess: a comma that groups no thousands
    assert exam.before().paper.answers == {1: 1.0, 2: 1.5}
    end.click()
    assert "1 of 2" in shown.value


def test_a_line_carries_the_marks_and_a_class_has_its_gains_and_common_misconceptions(small, tmp_path):
    exam.before().answer(1, 2)
    exam.before().result()
    sent = exam.line("Ada <b>")
    person = results.read(sent)
    assert person.before["place"] == (0, 2) and person.after == {} and person.believed == {"elements-are-bytes": 1}
    with pytest.raises(ValueError, match="checksum"):
        results.read(sent.replace("place=0", "place=2"))
    page = progress.class_map([sent, "course-exam-1;damaged"])
    assert "Examination, 1 people" in page and "The number of elements is the size" in page and "<b>" not in page


def test_what_is_kept_beside_the_progress_survives_damage(path):
    solved.keep("exam", lambda kept: {"before": {}})
    assert solved.kept("exam") == {"before": {}}
    path.with_name("progress.exam.json").write_text("{", encoding="utf-8")
    assert solved.kept("exam") is None
