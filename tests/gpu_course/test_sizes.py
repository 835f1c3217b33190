"""Can an exercise be read at a sitting, and are its lines counted, those in files of edits too?"""

import statistics

from tests.gpu_course import sizes

SITTING, USUAL = 275, 135  # lines: of one exercise, and of the one in the middle
LARGER = {  # exercises that are larger, with lines that they may have: they may shrink, and none may join them
    "07 quarter_step": 309,
}


def test_an_exercise_can_be_read_at_a_sitting():
    totals = {name: cost.total for name, cost in sizes.every().items()}
    assert len(totals) > 100 and statistics.median(totals.values()) <= USUAL
    large = {name: round(lines) for name, lines in totals.items() if lines > LARGER.get(name, SITTING)}
    assert large == {}, "python -m tests.gpu_course.sizes says what takes the lines"
    assert [name for name in LARGER if totals[name] <= SITTING] == [], "no longer larger: take them out of the list"


MODULE = """
from gpu_course.checks import exercise
from gpu_course.lesson00.helper import helped


@exercise(title="One")
def one(x):
    return x


@one.alternative("it costs more")
def _(x):
    return +x


@one.checks
def _(case):
    helped(1)
"""
ANSWERS = "== forgets [left-out]\n# why\n~ x → 1\n\n== right: adds\n~ x → +x\n\n== wrong: phrase\n~ x → 2\n"


def test_each_line_is_counted_once_for_what_it_belongs_to():
    cost = sizes.cost(MODULE, ANSWERS)
    assert (cost.module, cost.mistakes, cost.wrong_answers, cost.other_styles, cost.total) == (8, 3, 2, 5, 13)
    assert sizes.imported(MODULE, "00") == {"helper"} and not sizes.imported(MODULE, "01")
    assert sizes.imported("from gpu_course.lesson00 import a, b\n", "00") == {"a", "b"}


def test_a_table_is_printed_with_the_largest_last(capsys):
    sizes.main(["00"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("00 double") and lines[-1].startswith("median ") and len(lines) == 3
