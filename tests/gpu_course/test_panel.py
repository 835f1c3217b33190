"""Does a check say the same words as text and as a panel, and do its buttons say what the calls say?"""

import html
import re
import sys

import pytest
import torch

from gpu_course import fields, lesson00, look
from gpu_course.checks import WrongAnswer
from gpu_course.checks.panel import right_panel

VIEW = "application/vnd.jupyter.widget-view+json"


def words(page):
    """Return the words that a reader of the HTML sees, code in backticks; boxes and lines end a word, marks do not."""
    page = re.sub(r"<(div|/div)\b[^>]*>", " ", re.sub("</?code>", "`", page))
    return html.unescape(re.sub(r"<[^>]*>", "", page)).split()


def printing(x, device):
    print("<b>here</b>", x)
    return 2 * x


def without_sim(x, device):
    return x.to(device).nope


@pytest.fixture(params=[printing, without_sim, lambda x, device: 3 * x.to(device), lambda x, device: None])
def wrong(request):
    with pytest.raises(WrongAnswer) as caught:
        lesson00.double.check(request.param)
    return caught.value


def test_a_panel_has_the_words_of_the_text_and_the_buttons_say_what_the_calls_say(wrong, capsys):
    assert repr(wrong.panel) == f"double: not right yet.\n{wrong}"
    assert words(wrong.panel._repr_html_()) == repr(wrong.panel).split()
    row, said, style = wrong.buttons().children
    assert style.value == look.FOCUS
    for button, call in zip(row.children, ("hint", "solution", "stub", "reset"), strict=True):
        assert button.description.lower() == {"reset": "forget"}.get(call, call)
        button.click()
        lesson00.double._hinted = 0
        getattr(lesson00.double, call)()
        lesson00.double._hinted = 0
        assert words(said.value) == capsys.readouterr().out.split()


def test_in_a_kernel_the_panel_stands_where_the_traceback_would(wrong, monkeypatch):
    shown = []
    assert wrong._render_traceback_() == wrong.panel.text.splitlines()
    monkeypatch.setattr(fields, "in_kernel", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda *found, **options: shown.append((found, options)))
    for _ in range(2):  # as IPython 9 asks
        assert wrong._render_traceback_() == ["WrongAnswer: the panel above says what is wrong."]
    ((panel,), _), ((found,), options) = shown
    assert [*found] == [VIEW] and options == {"raw": True}
    assert panel.text == f"double: not right yet.\n{wrong}"


def test_a_stub_has_buttons_and_a_right_answer_says_what_comes_next(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(fields, "in_kernel", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda *found, **options: shown.append((found, options)))

    def stub(x: torch.Tensor, device: torch.device) -> torch.Tensor:
        raise NotImplementedError

    lesson00.double.check(stub)
    ((found,), options) = shown.pop()
    assert [*found] == [VIEW] and options == {"raw": True} and "not attempted" in capsys.readouterr().out
    lesson00.double.check(lambda x, device: 2 * x.to(device))
    ((panel,), _), _ = shown
    shown.clear()
    assert words(panel.html) == panel.text.split() and capsys.readouterr().out == ""
    assert panel.text.splitlines()[-1] == "All exercises of lesson 00 are solved."
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    lesson00.double.check(stub)
    assert shown == []
    lines = ["1 of 2 are solved.", "Next: <b> & c."]
    assert words(right_panel("f", "cpu", lines, None).html) == [
        "f:",
        "right.",
        "Checked",
        "on",
        "cpu.",
        *" ".join(lines).split(),
    ]


@pytest.mark.parametrize(("expected", "got", "marks"), [
    ("tensor([2., 4.], device='sim:0')", "tensor([2., 4.])", [", device='sim:0'"]),
    ("[1, 2, 3]", "[1, 5, 4]", ["2", "5"]),
    ("(2, 3)", "(2, 3)", []),
    ("", "None", ["None"]),
    ("aa", "aaa", ["aa", "aaa"]),
    ("a a", "a a a", [" a"]),
])  # fmt: skip
def test_the_first_difference_is_marked(expected, got, marks):
    page = look.compared({"expected:": expected, "got:": got})
    assert [html.unescape(found) for found in re.findall(r"<mark[^>]*>(.*?)</mark>", page)] == marks


class Shell:
    """What a check asks of IPython: the cells that were run."""

    def __init__(self, *cells):
        self.user_ns = {"In": ["", *cells]}


@pytest.mark.parametrize(("cells", "told"), [
    (("def double(x, device):\n    return 2 * x", "double = lesson00.double.check(double)"), ""),
    (("def double(x, device):\n    return 2 * (x", "double = lesson00.double.check(double)"),
     "its cell has a syntax error in line 2: '(' was never closed\n  return 2 * (x"),
    (("class double:\nreturn", "x = 3"), "its cell has a syntax error in line 2"),
    (("def double(x, device):\n    return 2 * (x", "def double(x, device):\n    return 2 * x"), ""),
    (("def double(x, device):\n    return 2 * (x", "double = lambda x, device: 2 * x"), ""),
    (("def doubled(x:", "redouble = (", "double == ("), ""),
])  # fmt: skip
def test_a_cell_that_python_could_not_read_is_told_and_what_stood_there_before_is_not_judged(cells, told, monkeypatch):
    monkeypatch.setattr("IPython.get_ipython", lambda: Shell(*cells))
    if not told:
        assert lesson00.double.check(lesson00.double) is lesson00.double.reference
        return
    with pytest.raises(WrongAnswer) as caught:
        lesson00.double.check(lesson00.double)
    assert str(caught.value).startswith(told) and "that was not judged" in str(caught.value)
