"""Can an exercise be read at a sitting, and are its lines counted, those in files of edits too?"""

import statistics

from tests.gpu_course import sizes

SITTING, USUAL = 275, 125  # lines: of one exercise, and of the one in the middle
LARGER = {  # exercises that are larger, with lines that they may have: they may shrink, and none may join them
    "07 quarter_step": 283,
}


def test_an_exercise_can_be_read_at_a_sitting():
    totals = {name: cost.total for name, cost in sizes.every()[0].items()}
    assert len(totals) > 100 and statistics.median(totals.values()) <= USUAL
    large = {name: round(lines) for name, lines in totals.items() if lines > LARGER.get(name, SITTING)}
    assert large == {}, "python -m tests.gpu_course.sizes says what takes the lines"
    assert [name for name in LARGER if totals[name] <= SITTING] == [], "no longer larger: take them out of the list"


MODULE = """
from gpu_course.checks import lesson

exercise = lesson("00")


def shared(x):
    return x


def of_the_lesson(x):
    return shared(x)


def of_the_check(x):
    return x


@exercise(title="One")
def one(x):
    return x


@one.checks
def _(case):
    of_the_check(of_the_lesson(1))
"""
EDITS = "== one: forgets\n# why\n-    return x\n+    return 1\n\n== one: adds\n# why\n+    x += 1\n"


def test_each_line_is_counted_once_for_what_it_belongs_to():
    wrong = "WRONG = {\n    'one': [\n        ('phrase', lambda x: 2),\n    ],\n}\n"
    found, rest = sizes.costs(["one"], {"gpu_course.lesson00": MODULE}, wrong, EDITS, EDITS, "")
    cost = found["one"]
    assert (cost.reference, cost.check, cost.mistakes, cost.wrong_answers) == (3, 3, 7, 10)
    assert (cost.helpers, rest) == (7, 0)
    cells = "from gpu_course.lesson00 import of_the_lesson\nof_the_lesson(3)"
    assert sizes.costs(["one"], {"gpu_course.lesson00": MODULE}, wrong, cells=cells)[0]["one"].helpers == 3


def test_a_table_is_printed_with_the_largest_last(capsys):
    sizes.main(["00"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("00 double") and lines[-1].startswith("median ") and len(lines) == 4
