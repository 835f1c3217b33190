"""Does each named mistake and each wrong choice belong to one misconception, and does a cell refute each?"""

import ast
from collections import Counter

import pytest

from gpu_course import catalogue, misconceptions
from gpu_course.checks import beside
from tools import misconceptions as pages
from tools import notebooks

EVERY = misconceptions.every()
REGISTRY = list(catalogue.registry())
ALL = [*EVERY, *misconceptions.slips()]


def test_each_mistake_has_the_misconception_or_slip_behind_it():
    rows = {found.name: [row for row in beside(found.reference).rows if row.kind == "mistake"] for found in REGISTRY}
    known = {one.id for one in ALL}
    assert sum(map(len, rows.values())) > 700
    assert [f"{name}: {row.name}" for name, found in rows.items() for row in found if row.belief not in known] == []


def choices() -> dict[str, list[str]]:
    """Return the choices of each prediction that has a written list of them, by cell such as "02:move-guess"."""
    found = {}
    for path in notebooks.lessons():
        for cell in notebooks.read(path).cells:
            if cell.cell_type == "code" and "predict(" in cell.source:
                tree = ast.parse(cell.source)
                lists = [*ast.walk(tree)]
                named = {
                    node.targets[0].id: node.value
                    for node in lists
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
                }
                for node in lists:
                    if isinstance(node, ast.keyword) and node.arg == "choices":
                        value = named.get(getattr(node.value, "id", None), node.value)
                        found[f"{notebooks.number(path)}:{cell.id}"] = _texts(value)
    return found


def _texts(value: ast.expr) -> list[str]:
    try:
        return ast.literal_eval(value)
    except ValueError:  # made by the lesson's code
        return []


def test_each_wrong_choice_of_a_prediction_belongs_to_one_misconception_or_slip():
    stated = Counter(choice for one in ALL for choice in one.choices)
    assert {choice: times for choice, times in stated.items() if times > 1} == {}
    asked = choices()
    assert len(asked) > 30 and set(misconceptions.measured()) <= asked.keys()
    for cell, offered in asked.items():
        wrong = [choice.removeprefix(f"{cell}: ") for choice in stated if choice.startswith(f"{cell}: ")]
        if cell in misconceptions.measured() or cell[:2] in misconceptions.choices_of_lessons():
            assert wrong == [], cell
        else:
            assert len(set(offered) & set(wrong)) == len(wrong) == len(offered) - 1, (cell, offered, wrong)
    assert {choice[: choice.index(": ")] for choice in stated} <= asked.keys()


def test_each_misconception_leads_to_a_cell_and_its_section():
    there = pages.sections()
    wrong = {one.id: (one.cell, there.get(one.cell)) for one in EVERY if there.get(one.cell) != one.section}
    assert wrong == {}, "python -m tools.misconceptions writes the headings"


def test_each_misconception_is_said_in_sentences_and_has_a_name_of_its_own():
    assert len({one.id for one in ALL}) == len({one.name for one in ALL}) == len(ALL) > 60
    for one in EVERY:
        for sentence in (one.believed, one.why, one.instead):
            assert sentence.endswith(".") and not sentence[0].islower(), sentence
    assert set(misconceptions.choices_of_lessons().values()) <= {one.id for one in EVERY}


def test_the_page_has_each_misconception_once():
    page = pages.page()
    assert [one.name for one in EVERY if page.count(f"**{one.name}**\n") != 1] == []


def test_links_lead_to_the_notebooks_of_the_lessons():
    assert misconceptions.files() == {notebooks.number(path): path.name for path in notebooks.lessons()}
    assert all(one.link.startswith(f"{one.lesson}_") and " " not in one.link for one in EVERY)


def test_one_is_found_by_its_id():
    assert misconceptions.get("to-in-place").lesson == "02"
    assert misconceptions.get("to-in-place").place == "lesson 02, “Ask it, move it”"
    assert misconceptions.get("to-in-place").link == "02_tensors_on_the_device.ipynb#Ask-it%2C-move-it"
    assert misconceptions.get("off-by-one").name == "One too many or too few"
    with pytest.raises(ValueError, match="'nobody'"):
        misconceptions.get("nobody")
