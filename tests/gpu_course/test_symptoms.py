"""Does the table of symptoms lead from each symptom to a tool and causes, and is the printed card made from it?"""

import re

import pytest

from gpu_course.lesson11.explorers import symptoms
from tools import card

ROWS = [row for kind in symptoms.TABLE.values() for row in kind.values()]


def test_every_row_says_what_to_look_at_what_it_may_be_and_which_lesson_explains_it():
    assert len(ROWS) >= 18 and {row.kind for row in ROWS} == {*symptoms.KINDS}
    for row in ROWS:
        assert 2 <= len(row.causes) <= 4 and re.fullmatch(r"0[0-9]|1[0-4]", row.lesson), row
        assert row.tool in str(row) and all(cause in str(row) for cause in row.causes)
        first = {kind: next(iter(rows)) for kind, rows in symptoms.TABLE.items()}
        assert symptoms.find(kind=row.kind, **first | {row.kind: row.symptom}) is row


def test_the_table_opens_row_by_row_without_a_kernel_and_what_it_does_not_have_is_named():
    page = symptoms.table()._repr_html_()
    assert page.count("<details") == page.count("</details>") == len(ROWS) + len(symptoms.KINDS)
    assert page.count("<li>") == sum(len(row.causes) for row in ROWS) and "<script" not in page
    assert all(row.symptom in str(symptoms.table()) for row in ROWS)
    with pytest.raises(ValueError, match="kind is 'slow', it may be one of: crash, wrong, stuck"):
        symptoms.find(kind="slow")
    with pytest.raises(ValueError, match="crash is 'inf or NaN', it may be one of: an import"):
        symptoms.find(kind="crash", crash="inf or NaN")


@pytest.mark.parametrize("name", ["what_is_wrong.svg", "what_is_wrong.pdf"])
def test_the_card_is_made_from_the_table_as_it_is(name):
    stored = (card.DOCS / name).read_bytes()
    assert card.digest().encode() in stored, "run: python tools/card.py"
    assert name.endswith("pdf") or all(row.symptom.encode() in stored for row in ROWS)


def test_nothing_on_the_card_is_cut_or_runs_into_something_else():
    figure = card.draw()
    boxes = [text.get_window_extent().transformed(figure.dpi_scale_trans.inverted()) for text in figure.axes[0].texts]
    assert len(boxes) > 4 * len(ROWS)
    for place, one in enumerate(boxes):
        assert one.x0 > 0.3 and one.x1 < card.WIDTH_IN - 0.3 and one.y0 > 0.1
        small = one.shrunk(0.98, 0.9)
        assert not any(small.overlaps(other) for other in boxes[place + 1 :]), figure.axes[0].texts[place]
