"""Are schedules that are written as text judged, timed and drawn rightly, and do ranks that run them train as one?"""

import itertools
import re

import pytest

from gpu_course.lesson10.pipelines import Schedule, ScheduleError, gpipe, one_f_one_b

SIZES = [(p, m) for p, m in itertools.product((1, 2, 3, 4, 8), (1, 2, 4, 8, 24)) if m < p or m % p == 0]
REVERSED = "F0 F1 F2 B2 B1 B0\n" * 3


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubbles_and_activations_are_those_of_the_formulas(p, m):
    formula, early = (p - 1) / (m + p - 1), [min(m, p - rank) for rank in range(p)]
    for text, held in ((gpipe(p, m), [m] * p), (one_f_one_b(p, m), early)):
        for backward in (0.5, 1.0, 2.0):
            found = Schedule(text, backward=backward)
            assert found.bubble == pytest.approx(formula) and found.held == held
            assert found.total == pytest.approx((m + p - 1) * (1 + backward))
    if m >= p:
        for each in (2, 3):
            found = Schedule(one_f_one_b(p, m, each), 1 / each, 2 / each)
            assert found.bubble == pytest.approx((p - 1) / (each * m + p - 1)) and found.stages == each * p
        split = Schedule(one_f_one_b(p, m, split=True))
        assert split.bubble == pytest.approx((p - 1) / (3 * m + p - 1)) and split.held == [p] * p
        assert Schedule(one_f_one_b(p, m, 2, split=True), 1 / 2, 1).bubble <= split.bubble


def test_actions_begin_when_what_they_need_is_there():
    found = Schedule("F0 F1 B0 B1\nF0 I0 F1 I1 W0 W1", forward=1, backward=4)
    words = {found.word(action) + f" of {action.stage}": span for action, span in found.spans.items()}
    assert words == {
        "F0 of 0": (0, 1), "F1 of 0": (1, 2), "F0 of 1": (1, 2), "I0 of 1": (2, 4), "F1 of 1": (4, 5),
        "B0 of 0": (4, 8), "I1 of 1": (5, 7), "B1 of 0": (8, 12), "W0 of 1": (7, 9), "W1 of 1": (9, 11),
    }  # fmt: skip
    assert found.total == 12 and found.bubble == pytest.approx(1 - 20 / 24) and found.held == [2, 2]
    assert str(found) == "2 ranks, 2 micro-batches: 12 long, bubble 16.7%, ranks hold 2, 2"


@pytest.mark.parametrize(("text", "words"), [
    ("", "no action"),
    ("F0 G0 B0", "'G0' on rank 0 is no action"),
    ("F0 -1F0", "'-1F0' on rank 0"),
    ("F0 B0\nF0", "B0 is missing on rank 1"),
    ("F0 B0\nF0 B0 F2 B2", "F1 is missing on rank"),
    ("F0 F0 B0", "F0 is 2 times on rank 0"),
    ("F0 I0 W0 B0", "both B, and I and W"),
    ("F0 I0", "W0 is missing on rank 0"),
    ("F0 B0\n0F1 0B1", "stage 0 must be on one rank, it is on [0, 1]"),
    ("0F0 0B0 2F0 2B0", "stage 1 must be on one rank, it is on none"),
    ("F0 B0\nB0 F0", "B0 stands before F0 on rank 1"),
    ("F0 W0 I0", "W0 stands before I0 on rank 0"),
    ("F0 F1 B0 B1\nF1 F0 B0 B1", "rank 1 takes F1 where rank 0 sends F0"),
    ("F0 F1 B0 B1\nF0 F1 B1 B0", "rank 0 takes B0 where rank 1 sends B1"),
    ("F0 B0 F1 B1\nF0 F1 B0 B1", "deadlock: rank 0 waits in B0 for B0 of rank 1; rank 1 waits in F1 for F1 of rank 0"),
    ("2F0 2B0 0F0 0B0\n1F0 1B0", "deadlock: rank 0 waits in 2F0 for 1F0 of rank 1; rank 1 waits in 1F0 for 0F0"),
])  # fmt: skip
def test_what_no_ranks_can_run_is_said_with_its_cause(text, words):
    with pytest.raises(ScheduleError, match=re.escape(words)):
        Schedule(text)


def test_a_picture_has_a_row_for_each_rank_and_what_it_holds():
    figure = Schedule(one_f_one_b(4, 8, 2, split=True)).plot("title")
    (axes,) = figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"rank {rank}" for rank in range(4)]
    assert len(texts) == 4 * 8 * 2 * 3 + 4 and texts[-4:] == ["holds 8"] * 4 and axes.get_title("left") == "title"
    assert [text.get_text()[0] for text in figure.legends[0].get_texts()] == ["F", "I", "W"]
    with pytest.raises(ValueError, match="at most 4, or a multiple of it, not 6"):
        one_f_one_b(4, 6, each=2)
    assert Schedule(one_f_one_b(4, 6)).held == [4, 3, 2, 1]
