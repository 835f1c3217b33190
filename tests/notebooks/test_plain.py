"""Is the code of every lesson code that a learner can read, and does each rule find what breaks it?"""

import pytest
from nbformat import v4

from tests.notebooks import plain
from tools import notebooks

LESSONS = [pytest.param(path, id=notebooks.number(path)) for path in notebooks.lessons()]


@pytest.mark.parametrize("path", LESSONS)
def test_the_code_of_a_lesson_can_be_read(path):
    assert [line for rule in plain.RULES for line in rule(notebooks.read(path))] == []


@pytest.mark.parametrize("path", LESSONS)
def test_no_text_repeats_what_a_simulated_device_printed(path):
    assert plain.repeated_results(notebooks.read(path)) == []


@pytest.mark.parametrize(("text", "found"), [
    ("A step takes 4.31 ms.", ["told: 4.31"]),
    ("A step takes a few ms.", []),
    ("[4.31](https://x.org/4.31) is published.", ["told: 4.31"]),
    ("[A page](https://x.org/4.31) says so.", []),
    ("Of 32 images and 7 classes: 5 ms.", []),
])  # fmt: skip
def test_a_number_of_an_output_is_found_in_the_text_beside_it(text, found):
    shown = cell("shown", "print(32)")
    shown.outputs = [v4.new_output("stream", text="32 images: 4.31 ms, 5 launches (simulated)")]
    assert plain.repeated_results(v4.new_notebook(cells=[shown, v4.new_markdown_cell(text, id="told")])) == found


def test_each_number_that_is_given_stands_in_its_text():
    texts = {one.id: one.source for path in notebooks.lessons() for one in notebooks.read(path).cells}
    assert all(number in texts.get(name, "") for name, number in plain.GIVEN)


def cell(name, source, folded=False):
    made = v4.new_code_cell(source, id=name)
    if folded:
        made.metadata["tags"] = [notebooks.FOLDED]
    return made


FAULTS = {
    plain.folded_imports: [cell("imports", "import torch", folded=True)],
    plain.folded_calls: [cell("hidden", "def draw():\n    return 1", folded=True), cell("used", "draw()")],
    plain.crowded_lines: [
        cell("a", "x, y, z = 1, 2, 3"),
        cell("b", "double = lambda x: 2 * x"),
        cell("c", "x = 1; y = 2"),
    ],
    plain.joined_claims: [cell("a", "assert x == 1 and y == 2"), cell("b", "assert x == y == z")],
    plain.unnamed_guards: [cell("a", 'if DEVICE.type in ("cuda", "sim"):\n    x = 1')],
    plain.wide_lines: [cell("a", "x = " + "1 + " * 30 + "1")],
}


@pytest.mark.parametrize("rule", plain.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_finds_each_fault_and_nothing_else(rule):
    good = [
        cell("imports", "import torch"),
        cell("fine", "x = 1\nassert x == 1\nHAS_QUEUE = x > 0\nif HAS_QUEUE:\n    x = 2"),
    ]
    faults = FAULTS[rule]
    rest = good[1:] if rule is plain.folded_imports else good
    assert rule(v4.new_notebook(cells=good)) == []
    found = rule(v4.new_notebook(cells=[*rest, *faults]))
    wrong = [one for one in faults if notebooks.FOLDED not in one.metadata.get("tags", []) or one.id == "imports"]
    assert len(found) == len(wrong)


def test_every_rule_has_its_faults():
    assert FAULTS.keys() == set(plain.RULES)
