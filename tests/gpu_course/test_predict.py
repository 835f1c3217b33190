"""Does a guess reach its result, with a field for it, without one, and with none made?"""

import dataclasses
import sys

import numpy as np
import pytest
import torch

from gpu_course import predict as module
from gpu_course.predict import predict

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(module, "_MADE", {})


def field(guess):
    """Return the control of `guess`, after it was shown, and the line below it."""
    assert guess._repr_mimebundle_()[VIEW]["model_id"] == guess._widget.model_id
    return guess._widget.children[1], guess._widget.children[2]


# --- numbers ---


def test_a_number_is_guessed_and_the_result_says_where_it_comes_from():
    guess = predict("How long does it take?", unit="ms")
    control, line = field(guess)
    assert guess.value is None and control.value == "" and control.placeholder == "a number, in ms"
    control.value = "3"
    assert guess.value == 3 and line.value == "Your guess: 3 ms"
    assert str(guess.reveal(12.34)) == "guess     3 ms\nmeasured  12.34 ms\nThe result is 4.11 times the guess."
    said = "guess    1,000,000\ncounted  2,500,000\nThe result is 2.5 times the guess."
    assert str(predict("How many?").commit(1_000_000).reveal(2_500_000, "counted")) == said


@pytest.mark.parametrize(("written", "value"), [
    ("3", 3), (" 0.5 ms", 0.5), ("1,000", 1000), ("1,234,567.5", 1234567.5), ("3e6", 3e6), ("-2ms", -2), ("0", 0),
    ("1,5", 1.5),
])  # fmt: skip
def test_what_may_be_written(written, value):
    guess = predict("How long does it take?", unit="ms")
    field(guess)[0].value = written
    assert guess.value == value


@pytest.mark.parametrize("written", ["many", "1,5,5", "nan", "inf", "1 s", "ms", "10**6", "<b>"])
def test_what_is_no_number_is_said_and_is_no_guess(written):
    guess = predict("How long does it take?", unit="ms")
    control, line = field(guess)
    control.value = "7"
    control.value = written
    assert guess.value is None and line.value.startswith("No guess yet: write a number such as 12, 0.5 or 3e6")
    assert "<" not in line.value
    control.value = ""
    assert guess.value is None and line.value == ""


@pytest.mark.parametrize(("guess", "result", "verdict", "ratio"), [
    (2.0, 2.0, "The guess was right.", 1.0),
    (100.0, 104.0, "The guess was within 5 % of the result.", 1.04),
    (100.0, 96.0, "The guess was within 5 % of the result.", 0.96),
    (100.0, 105.0, "The result is 1.05 times the guess.", 1.05),
    (3000.0, 2.0, "The guess is 1,500 times the result.", 2 / 3000),
    (0.0, 5.0, "You guessed 0; it is 5.", None),
    (5.0, 0.0, "You guessed 5; it is 0.", None),
    (-1.0, 5.0, "You guessed -1; it is 5.", None),
    (0.0, 0.0, "The guess was right.", None),
])  # fmt: skip
def test_the_verdict_on_a_number(guess, result, verdict, ratio):
    reveal = module.Reveal("How many?", guess, result)
    assert (reveal.verdict, reveal.ratio) == (verdict, pytest.approx(ratio) if ratio else ratio)


@pytest.mark.parametrize("measured", [5, 5.0, np.float32(5), np.int64(5), torch.tensor(5), torch.tensor([5.0])])
def test_numbers_of_any_library_are_taken(measured):
    assert predict("How many?").reveal(measured).result == 5.0


# --- choices ---


def test_a_choice_is_guessed_and_a_wrong_one_answered_by_what_speaks_against_it():
    guess = predict("Which is faster?", choices=["CPU", "GPU"])
    control, line = field(guess)
    assert control.value is None and guess.value is None
    control.value = "CPU"
    assert guess.value == "CPU" and line.value == "Your guess: CPU"
    assert str(guess.reveal("GPU")) == "guess     CPU\nmeasured  GPU\nYou guessed CPU; it is GPU."
    assert guess.reveal("CPU").right and guess.reveal("CPU").verdict == "The guess was right."
    assert guess.reveal("CPU").ratio is None
    against = {"copies": "there are 0 of them.", "launches": "10 of them take 0.1 ms."}
    unanswered = predict("Why?", choices=["copies", "launches", "waiting"])
    assert unanswered.reveal("waiting", "counted", against).verdict == ""
    guess = predict("Why is it slow?", choices=["copies", "launches", "waiting"])
    assert guess.commit("copies").reveal("waiting", "counted", against).verdict == "Not that: there are 0 of them."
    second = predict("And now?", choices=["copies", "launches", "waiting"]).commit("waiting")
    assert second.reveal("waiting", "counted", against).verdict == "The guess was right."
    with pytest.raises(ValueError, match="against must be about all choices but 'copies'"):
        guess.reveal("copies", "counted", against)


# --- with and without a guess ---


def test_without_a_guess_the_result_alone_is_shown():
    for reveal in (predict("How many?", unit="ms").reveal(5), predict("Which?", choices=["5 ms", "b"]).reveal("5 ms")):
        assert str(reveal) == "measured  5 ms"
        assert reveal.ratio is None and not reveal.right


def test_running_the_cell_again_keeps_the_guess():
    field(predict("How many?", unit="ms"))[0].value = "3"
    again = predict("How many?", unit="ms")
    assert again.value == 3 and field(again)[0].value == "3"
    assert predict("How many?", unit="s").value is None
    assert predict("How many?", choices=["1", "3"]).value is None


def test_commit_serves_where_there_is_no_field():
    guess = predict("How long?", unit="s").commit(0.123456789)
    control, line = field(guess)
    assert control.value == "0.123456789" and line.value == "Your guess: 0.1235 s"
    guess.commit(7)
    assert control.value == "7" and guess.value == 7
    choice = predict("Which?", choices=["a", "b"]).commit("b")
    assert field(choice)[0].value == "b"
    choice.commit("a")
    assert field(choice)[0].value == "a" and choice.reveal("a").right


def test_a_question_is_closed_once_the_result_was_shown_with_a_guess_or_without(capsys):
    late = predict("How late?", unit="s")
    control, line = field(late)
    late.reveal(5)
    assert control.disabled and line.value == "No guess was made"
    assert late.commit(5).value is None and late.reveal(5).guess is None
    guess = predict("How long?", unit="s")
    control, line = field(guess)
    control.value = "3"
    assert guess.reveal(5).guess == 3 and guess.locked and control.disabled
    capsys.readouterr()
    assert guess.commit(5).value == 3 and control.value == "3"
    assert capsys.readouterr().out == "Your guess: 3 s. The result is known.\n"
    control.value = "5"  # by a script: a reader cannot
    assert guess.value == 3 and line.value == "Your guess: 3 s"
    shown = predict("Which?", choices=["a", "b"]).commit("b")
    shown.reveal("a")
    assert field(shown)[0].disabled


# --- how it is shown ---


def test_the_text_is_stable_and_html_is_escaped():
    guess = predict("Is <b> & 'c'?", choices=["<i>", "d"])
    bundle = guess._repr_mimebundle_()
    assert list(bundle) == [VIEW, "text/plain", "text/html"]
    assert bundle["text/plain"] == repr(guess) == "Predict: Is <b> & 'c'? (one of: <i>; d)"
    assert "&lt;i&gt;" in bundle["text/html"] and "<i>" not in bundle["text/html"]
    assert "&lt;b&gt;" in guess._widget.children[0].value
    reveal = guess.commit("<i>").reveal("<i>")
    assert "<td>&lt;i&gt;</td>" in reveal._repr_html_() and dataclasses.is_dataclass(reveal)
    assert "guess" not in predict("How many?").reveal(3)._repr_html_()


def test_without_ipywidgets_the_text_remains(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    guess = predict("How many?", unit="ms")
    assert list(guess._repr_mimebundle_()) == ["text/plain", "text/html"]
    assert guess.commit(2).reveal(4).ratio == 2


def test_outside_a_notebook_the_question_is_printed(capsys):
    predict("How many?", unit="ms")
    assert capsys.readouterr().out == "Predict: How many? (a number, in ms)\n"


@pytest.mark.parametrize(("call", "error", "phrase"), [
    (lambda: predict(None), TypeError, "question must be text, not None"),
    (lambda: predict("  "), ValueError, "question must not be empty"),
    (lambda: predict("Q", unit=3), TypeError, "unit must be text, not 3"),
    (lambda: predict("Q", unit=""), ValueError, "unit must not be empty"),
    (lambda: predict("Q", unit="ms", choices=["a", "b"]), ValueError, "unit must be None where choices are given"),
    (lambda: predict("Q", choices="ab"), ValueError, "choices must be a list of two or more different texts, .* 'ab'"),
    (lambda: predict("Q", choices=["a", "a"]), ValueError, "choices must be a list of two or more different texts"),
    (lambda: predict("Q").reveal("3"), TypeError, "measured must be a number, not '3'"),
    (lambda: predict("Q").reveal(float("nan")), ValueError, "measured must be a finite number, not nan"),
    (lambda: predict("Q").reveal(3, label=3), TypeError, "label must be text"),
    (lambda: predict("Q").commit("3"), TypeError, "value must be a number, not '3'"),
    (lambda: predict("Q", choices=["a", "b"]).reveal(1), ValueError, r"measured must be one of \['a', 'b'\], not 1"),
])  # fmt: skip
def test_wrong_arguments_are_named(call, error, phrase):
    with pytest.raises(error, match=phrase):
        call()


# --- in a real kernel ---
