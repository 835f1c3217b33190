"""Can a class be led through each plan as it is written, and has each plan its page?"""

import pytest

from gpu_course import catalogue
from tests.notebooks.plans import needed, run
from tools import plans

ROWS = {f"{plan.name}, row {at}": row for plan in plans.plans() for at, row in enumerate(plan.rows) if row.lesson}


def test_the_minutes_of_each_row_are_enough_and_not_twice_too_many():
    assert len(ROWS) > 15
    for name, row in ROWS.items():
        free = "your own" in " ".join(row.show).lower()  # people run programs of their own
        assert needed(row) <= row.minutes <= 2 * needed(row) + 60 * free, (name, needed(row))


KERNELS = {f"{plan.name}, {row.lesson}": row for plan in plans.plans() for row in plans.in_kernels(plan)}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_cells_of_a_plan_run_in_their_order_in_a_fresh_kernel_without_the_others(name):
    run(KERNELS[name])


def test_a_heading_or_an_exercise_that_a_lesson_does_not_have_is_named():
    with pytest.raises(ValueError, match="lesson 02 has no heading \\['Nothing'\\]"):
        plans.cells(plans.Row(5, "02", ("Nothing",), (), ""))
    with pytest.raises(ValueError, match="lesson 02 has no exercise \\['nothing'\\]"):
        plans.cells(plans.Row(5, "02", (), ("ramp", "nothing"), ""))


def test_an_exercise_is_its_text_its_stub_and_its_check():
    text, stub, check = plans.cells(plans.Row(5, "02", (), ("ramp",), ""))[-3:]
    assert text.cell_type == "markdown" and stub.source.startswith("def ramp(") and ".ramp.check(" in check.source


def test_each_plan_has_a_page_with_the_mistakes_of_its_exercises():
    known = {(one.lesson, one.name): one for one in catalogue.registry()}
    for plan in plans.plans():
        page = plans.page(plan)
        given = [key for row in plan.rows if row.lesson for key in plans.exercises(row)]
        assert given and page.startswith(f"# {plan.title}")
        for key in given:
            assert f"### `{key[1]}`: {known[key].task.title}" in page
            assert all(f"| {one.name} | {one.why} |" in page for one in known[key].mistakes[:1])
