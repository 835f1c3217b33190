"""Has each item one right answer, found again by running what it describes, and is an examination kept and judged?"""

import itertools
import json
import math
import random
import re
import sys

import pytest

from gpu_course import classroom, exam, misconceptions, recall, solved
from gpu_course.exam import items, paper, results
from gpu_course.exam.items import APART, CHOICES, WITHIN, Clash, Generator, Item

BANK = exam.bank()
KNOWN = {one.id for one in [*misconceptions.every(), *misconceptions.slips()]}
DRAWS, MANY, VARIANTS = 10, 200, 30


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    """Give each test a progress file of its own, and no paper that another test has drawn."""
    path = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    monkeypatch.setattr(exam, "_PAPERS", {})
    monkeypatch.setattr(recall, "_PAPERS", {})
    return path


def test_the_bank_has_three_generators_for_each_place_of_a_paper_and_some_on_each_lesson():
    by_skill = {skill: [found.name for found in BANK if found.skill == skill] for skill in exam.SKILLS}
    assert len(BANK) == sum(map(len, by_skill.values())) and min(map(len, by_skill.values())) >= 3 * exam.EACH
    assert {found.lesson for found in BANK} >= {f"{lesson:02}" for lesson in range(1, 13)}
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
    assert not any(too_near(value, item.answer) for value in item.wrong)
    told = " ".join([item.text, *item.steps, *item.options])
    assert told.count("`") % 2 == 0 and not re.search(r"(?<!rank )\b1 (texts|states|times|samples|orders|rows)\b", told)


def too_near(value, answer) -> bool:
    """Return whether a wrong number lies where the tolerance, or the rounding of its digits, makes it the right one."""
    return isinstance(answer, float) and math.isclose(value, answer, rel_tol=APART)


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


@pytest.mark.parametrize("number", [2.0, 2.0 * (1 + WITHIN), 2.0 * (1 - 0.9 * APART)])
def test_a_draw_whose_misconception_the_tolerance_covers_is_drawn_again(number):
    with pytest.raises(Clash, match="cannot be told from"):
        items.number("How many?", 2.0, {number: "off-by-one"}, ())
    draws = itertools.cycle([number, 3.0])
    found = Generator(
        "g", "time", (), True, False, lambda draw: items.number("?", 2.0, {next(draws): "off-by-one"}, ())
    )
    assert [found.item(seed).wrong for seed in range(3)] == [{3.0: "off-by-one"}] * 3


def test_an_answer_between_two_misconceptions_shows_the_nearer_one():
    item = items.number("?", 1.0, {10.0: "off-by-one", 10.1: "elements-are-bytes"}, ())
    assert item.misconception(10.02) == "off-by-one" and item.misconception(10.1) == "elements-are-bytes"


def test_an_empty_variable_is_shown_as_empty():
    reports = {
        BANK[at].item(seed).shown for at, one in enumerate(BANK) if one.name == "why_no_gpu" for seed in range(60)
    }
    lines = {line for report in reports for line in report.splitlines() if line.startswith("visible_devices")}
    assert lines == {
        "visible_devices  None", "visible_devices  -1", 'visible_devices  "" (set, and empty)',
    }  # fmt: skip


def made(skill: str, number: int) -> tuple[Generator, Item]:
    """Return an item whose answer is `number`; who doubles it believes that elements are bytes."""
    item = items.number("How many?", number, {2.0 * number: "elements-are-bytes"}, ("Count.",))
    return Generator(f"{skill}_{number}", skill, ("elements-are-bytes",), True, False, lambda draw: item), item


@pytest.fixture
def small(monkeypatch):
    """Make an examination of two items of each skill, with the answers 1 to 12."""
    drawn = [made(skill, 2 * at + one) for at, skill in enumerate(exam.SKILLS) for one in (1, 2)]
    monkeypatch.setattr(exam, "chosen", lambda chance: [(found.name, 0) for found, _ in drawn])
    monkeypatch.setattr(exam, "drawn", lambda asked: drawn)
    monkeypatch.setattr(exam, "_known", lambda: {found.name: found for found, _ in drawn})
    return drawn


def test_an_examination_has_two_items_of_each_skill():
    chosen = [name for name, _ in exam.chosen(random.Random(1))]
    skills = [items.BANK[name].skill for name in chosen]
    assert len(set(chosen)) == 12 and {skill: skills.count(skill) for skill in skills} == dict.fromkeys(exam.SKILLS, 2)


def test_the_first_third_of_every_paper_is_easy_and_every_item_is_asked_of_somebody():
    asked = set()
    for seed in range(300):
        chosen = [items.BANK[name] for name, _ in exam.chosen(random.Random(seed))]
        asked |= {found.name for found in chosen}
        assert all(found.short and found.lesson <= "05" for found in chosen[:4])
    assert asked == {found.name for found in exam.bank()}


def test_the_examination_draws_nothing_before_it_is_looked_at(monkeypatch):
    monkeypatch.setattr(exam, "drawn", lambda asked: pytest.fail("drawn"))
    assert str(exam.before()) == (
        "Examination before the course: 12 items in six skills, 15 minutes.\n"
        'Nobody is expected to know these before lesson 01. If you do not know, answer "?".\n'
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
    link = misconceptions.get("elements-are-bytes").link
    assert found.gain is None and found.read == {misconceptions.get("elements-are-bytes").place: link}
    for number in range(1, 13):
        exam.after().answer(number, number)
    after = exam.after().result()
    assert after.gain == pytest.approx(1 / 12) and "Gain: +8 % of all items." in str(after)
    assert "place     1 of 2  2 of 2" in str(after)


def test_no_answer_says_whether_it_was_right_and_the_result_does(small):
    assert exam.before().answer(1, 1) == exam.before().answer(2, 99).replace("2", "1") == "Answer 1 is kept."


def test_the_result_shows_each_item_with_what_is_right_which_belief_it_showed_and_a_link(small):
    exam.before().answer(1, 2)
    exam.before().answer(2, "?")
    exam.before().answer(3, 3)
    found = exam.before().result()
    belief = misconceptions.get("elements-are-bytes")
    assert "1. How many? (a number)\n   Your answer: 2. That is wrong. The answer is 1. Count." in str(found)
    assert "Who answers so may believe:" in str(found)
    assert "Your answer: I do not know. The answer is 2." in str(found) and "Your answer: 3. Right: 3." in str(found)
    assert str(found).count("You left it empty.") == 9 and "elements-are-bytes" not in str(found)
    shown = found._repr_html_()
    assert f'<a href="{belief.link}" target="_blank">{belief.place}</a>' in shown and "`" not in shown
    assert [(one.given, one.right, one.belief) for one in found.items[:4]] == [
        (2.0, False, "elements-are-bytes"), ("?", False, ""), (3.0, True, ""), (None, False, ""),
    ]  # fmt: skip


def test_an_empty_item_is_no_wrong_one_and_a_paper_without_answers_does_not_end(small):
    empty = exam.before().result()
    assert empty.marks == {} and "Nothing was answered yet" in str(empty) and not exam.before().taken
    exam.before().answer(1, 1)
    found = exam.before().result()
    assert found.marks == {"place": (1, 1)} and "neither right nor wrong: 11 of 12" in str(found)
    for number in range(1, 13):
        exam.after().answer(number, number)
    after = exam.after().result()
    assert after.gain is None and "it needs 6 answers before the course and after it" in str(after)


def test_an_examination_that_is_over_takes_no_answer_here_nor_in_another_notebook(small, monkeypatch):
    exam.before().answer(1, 2)
    other = exam.Examination("before")  # open in another notebook
    assert other.answer(1, 2) == "Answer 1 is kept."
    first = exam.before().result()
    assert "over" in exam.before().answer(1, 1) and exam.before().result() == first
    other.answer(1, 1)
    assert other.result().marks == first.marks == {"place": (0, 1)}
    monkeypatch.setattr(exam, "_PAPERS", {})  # another kernel
    assert str(exam.before()).splitlines()[0] == "Examination before the course: taken, 0 of 1 answers right."
    assert "over" in exam.before().answer(1, 1) and str(exam.before().result()) == str(first)
    assert exam.before().paper.widget().children[2].disabled


def test_after_a_restart_the_same_items_are_judged(sim, path, monkeypatch):
    first = exam.before().paper.questions
    exam.before().answer(1, "?")
    monkeypatch.setattr(exam, "_PAPERS", {})
    assert exam.before().paper.questions == first
    assert [one.question for one in exam.before().result().items] == first
    assert len(json.loads(path.with_name("progress.exam.json").read_text(encoding="utf-8"))["before"]["asked"]) == 12


def test_recall_judges_the_items_that_it_asks_where_some_cannot_be_drawn(sim, monkeypatch):
    whole, first = exam.drawn, recall.plan("05")[0]
    monkeypatch.setattr(exam, "drawn", lambda asked: whole([each for each in asked if each[0] != first]))
    paper_of_two = recall.ask("05")
    drawn = whole([(name, 5000) for name in recall.plan("05")[1:]])
    assert [one.text for one in paper_of_two.questions] == [item.text for _, item in drawn]
    assert str(whole([(recall.plan("05")[1], 5000)])[0][1].steps[0]) in paper_of_two.answer(1, "?")


ASKED = [["ring_bytes", 3], ["bubble", 4]]
STATES = [
    ({"asked": 3}, "damaged"),
    ([1], "damaged"),
    ({"asked": ASKED}, "damaged"),
    ({"answers": {}}, "damaged"),
    ({"asked": [["ring_bytes"]], "answers": {}, "seal": "0"}, "damaged"),
    ({"asked": ASKED, "answers": {"7": 1.0}, "seal": "0"}, "damaged"),
    ({"asked": ASKED, "answers": {"1": None}, "seal": "0"}, "damaged"),
    ({"asked": ASKED, "answers": {"1": 1.0}, "marks": {"place": [3, 2]}}, "damaged"),
    ({"asked": ASKED, "answers": {"1": 1.0}}, "another version"),  # before questions had a seal
    ({"asked": ASKED, "answers": {"1": 1.0}, "marks": {}, "seal": "0"}, ""),
    ({"asked": [["nobody", 1]], "answers": {"1": 1.0}, "seal": "0"}, "another version"),
    ({"asked": ASKED, "answers": {"1": 1.0}, "seal": "0"}, "another version"),
]


@pytest.mark.parametrize("state, phrase", STATES)
def test_damaged_and_older_states_are_refused_with_a_sentence_and_nothing_is_lost(state, phrase, sim, path):
    file = path.with_name("progress.exam.json")
    file.write_text(json.dumps({"before": state, "after": {}}), encoding="utf-8")
    shown = f"{exam.before()}\n{exam.before().paper}"
    assert (phrase in shown and "It is kept as “before-1”" in shown) if phrase else exam.before().taken
    if phrase:
        assert len(exam.before().paper.questions) == 12 and not exam.before().taken
        assert json.loads(file.read_text(encoding="utf-8"))["before-1"] == state


def test_the_result_of_an_older_version_stands_without_its_items(path):
    marks = {"place": [1, 2], "time": [2, 2], "train": [0, 2]}
    old = {"asked": ASKED, "answers": {"1": 1.0}, "marks": marks, "believed": ["call-is-done", "nobody"]}
    path.with_name("progress.exam.json").write_text(json.dumps({"before": old}), encoding="utf-8")
    assert "taken, 3 of 6 answers right" in str(exam.before()) and exam.before().paper.questions == []
    assert "another machine or version of the course has them" in str(exam.before().result())
    assert exam.line("Ada").split(";")[4:-1] == ["before:place=1.2,time=2.2,train=0.2", "!call-is-done:1"]


def test_a_damaged_file_is_put_aside(small, path, capsys):
    file = path.with_name("progress.exam.json")
    for number, text in enumerate(["{", "[1]"], 1):
        file.write_text(text, encoding="utf-8")
        exam._PAPERS.clear()
        assert exam.before().answer(1, 1) == "Answer 1 is kept."
        assert path.with_name(f"progress.exam.damaged-{number}.json").read_text(encoding="utf-8") == text
    assert "was damaged. It is kept as" in capsys.readouterr().err


def test_a_line_with_many_items_counts_no_more_than_any_other_person():
    people = [results.Person(str(at), after={"place": (1, 2)}) for at in range(49)]
    loud = results.read(results.line("Loud", "", {}, {"place": (99, 99)}, []))
    assert results.class_section(people).count("<td>50</td>") == 1
    assert "<td>51</td>" in results.class_section([*people, loud])


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
    answers: dict = {}
    found = Generator("g", "place", ("to-in-place",), True, False, lambda draw: item)
    asked = paper.Paper("Title", [item], {}, answers.__setitem__, lambda at: paper.judged(found, item, answers[at]))
    right = item.options.index("a") + 1
    assert asked.answer(1, right) == "Right: a. Look."
    said = asked.answer(1, right % 5 + 1)
    assert said.startswith("That is wrong. The answer is a. Look. Who answers so may believe: “After `x.to(device)`")
    assert said.endswith("Read again: lesson 02, “Ask it, move it”.")
    with pytest.raises(ValueError, match="the number of an option, 1 to 5"):
        asked.answer(1, 6)
    assert "   1) " in str(asked) and "<li>a</li>" in asked._repr_html_()


def test_on_a_narrow_page_lines_of_code_stay_whole_and_fields_fit():
    shown = paper.item_html(1, items.Question("What is it?", "x = 1\ny = 2", "MiB", ()))
    assert "white-space: pre;" in shown and "width: 0; min-width: 100%" in shown and "x = 1\ny = 2</pre>" in shown
    fields = [row for row in exam.before().paper.widget().children if hasattr(row, "continuous_update")]
    assert fields and all(field.layout.max_width == "95%" for field in fields)


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
    fields[2].value = "?"
    assert exam.before().paper.answers == {1: 1.0, 2: 1.5, 3: "?"}
    end.click()
    assert shown.value == "<p>9 items left empty. Click again to end: answers then stay.</p>"
    assert not exam.before().taken
    end.click()
    assert "1 of 2" in shown.value and fields[0].disabled


def test_a_line_carries_the_marks_and_a_class_has_its_gains_and_common_misconceptions(small, tmp_path):
    exam.before().answer(1, 2)
    exam.before().result()
    sent = exam.line("Ada <b>")
    person = results.read(sent)
    assert person.before["place"] == (0, 1) and person.after == {} and person.believed == {"elements-are-bytes": 1}
    with pytest.raises(ValueError, match="checksum"):
        results.read(sent.replace("place=0.1", "place=1.1"))
    page = classroom.page(classroom.gathered([sent, "course-exam-1;damaged"]))
    assert "Examination, 1 person<" in page and "The number of elements is the size" in page and "<b>" not in page


def test_what_is_kept_beside_the_progress_survives_damage(path):
    solved.keep("exam", lambda kept: {"before": {}})
    assert solved.kept("exam") == {"before": {}}
    path.with_name("progress.exam.json").write_text("{", encoding="utf-8")
    assert solved.kept("exam") is None
