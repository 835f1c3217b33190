"""Predictions: a guess before a result is shown.

    guess = predict("How long does this take?", unit="ms")
    guess.reveal(measured_ms)

In JupyterLab and Colab a field takes the guess; where none appears, `guess.commit(12)` does. Without a guess everything
runs as well and the result is shown.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_utils import arguments
from gpu_course import fields, look

__all__ = ["Guess", "Reveal", "predict"]

_MADE: "dict[tuple[str, tuple[str, ...], str], Guess]" = {}  # for the kernel's life: a cell that runs again keeps it


def predict(question: str, *, choices: Sequence[str] | None = None, unit: str | None = None) -> "Guess":
    """Show `question` with a field for a number in `unit`, or with `choices`, and return the `Guess`.

    The same question returns the same Guess, with what was guessed before.
    """
    key = _text("question", question), _checked(choices), _text("unit", unit).strip() if unit is not None else ""
    if choices is not None and unit is not None:
        raise ValueError(f"unit must be None where choices are given, not {unit!r}")
    guess = _MADE.setdefault(key, Guess(*key))
    from IPython.display import display

    display(guess)
    return guess


def _text(argument: str, given: str) -> str:
    if not arguments.text(argument, given).strip():
        raise ValueError(f"{argument} must not be empty, not {given!r}")
    return given


def _checked(choices: Sequence[str] | None) -> tuple[str, ...]:
    if choices is None:
        return ()
    texts = isinstance(choices, list | tuple) and all(isinstance(choice, str) and choice.strip() for choice in choices)
    if not texts or len(set(choices)) < max(len(choices), 2):
        raise ValueError(f"choices must be a list of two or more different texts, none empty, not {choices!r}")
    return tuple(choices)


class Guess:
    """A question and what the reader expects: `value` is a number or one of the choices, None before a guess."""

    def __init__(self, question: str, choices: tuple[str, ...], unit: str) -> None:
        self.question, self.choices, self.unit = question, choices, unit
        self.value: float | str | None = None
        self.locked = False  # the result was shown: what is guessed from now on is no guess
        self._widget: Any = None

    def commit(self, value: float | str) -> "Guess":
        """Make `value` the guess, where there is no field for it. Once the result was shown, the guess stays."""
        given = self._answer("value", value)
        if self.locked:
            print(f"{self._state()}. The result is known.")
            return self
        self.value = given
        if self._widget is not None:
            control = self._widget.children[1]
            control.value = self.value if self.choices else _written(self.value)
        return self

    def reveal(self, measured: Any, label: str = "measured", against: Mapping[str, str] | None = None) -> "Reveal":
        """Return the guess beside the result: a number in the question's unit, or the choice that is right.

        `label` says where the number comes from, for example "counted" or "simulated"; `against` what was seen that
        speaks against a choice, which a reader who made it is told. The question is closed from now on.
        """
        result = self._answer("measured", measured)
        if against is not None and {*against, result} != {*self.choices}:
            raise ValueError(f"against must be about all choices but {result!r}, not {list(against)!r}")
        evidence = (against or {}).get(str(self.value), "")
        self._lock()
        return Reveal(self.question, self.value, result, self.unit, _text("label", label), evidence)

    def _answer(self, argument: str, given: Any) -> float | str:
        """Return a number, or one of the choices."""
        if not self.choices:
            return arguments.number(argument, given)
        if given not in self.choices:
            raise ValueError(f"{argument} must be one of {list(self.choices)}, not {given!r}")
        return given

    def _lock(self) -> None:
        """Close the question: let the guess stay as it is, also where there is none."""
        self.locked = True
        if self._widget is not None:
            self._widget.children[1].disabled = True
            self._widget.children[2].value = html.escape(self._state())

    def _asked(self) -> str:
        if self.choices:
            return "one of: " + "; ".join(self.choices)
        return f"a number, in {self.unit}" if self.unit else "a number"

    def _state(self) -> str:
        if self.value is None:
            return "No guess was made" if self.locked else ""
        return f"Your guess: {_shown(self.value, self.unit)}"

    def __str__(self) -> str:
        return "\n".join(filter(None, [f"Predict: {self.question} ({self._asked()})", self._state()]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        asked = f"<p><b>Predict:</b> {html.escape(self.question)} ({html.escape(self._asked())})</p>"
        return asked + (f"<p>{html.escape(self._state())}</p>" if self._state() else "")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return fields.bundle({"text/plain": str(self), "text/html": self._repr_html_()}, self.widget)

    def widget(self) -> Any:
        """Return the widget: the question above its field; the same one each time."""
        self._widget = self._widget or self._controls()
        return self._widget

    def _controls(self) -> Any:
        import ipywidgets as widgets

        question = widgets.HTML(f"{look.STYLE}<b>Predict:</b> {html.escape(self.question)}")
        if self.choices:
            layout = {"width": "auto"}
            control = widgets.RadioButtons(options=list(self.choices), value=self.value, layout=layout)
        else:
            field = {"placeholder": self._asked(), "layout": {"width": "16em", "max_width": "95%"}}
            control = widgets.Text(value=_written(self.value), **field)
        answer = widgets.HTML(html.escape(self._state()))

        def take(change: Any) -> None:
            answer.value = html.escape(self._take(change["new"]))

        control.observe(take, names="value")
        control.disabled = self.locked
        box = widgets.VBox([question, control, answer])
        box.add_class("course-ask")
        return box

    def _take(self, given: str | None) -> str:
        """Keep what the control gives and return the line below it."""
        if self.locked:
            return self._state()
        self.value = None
        try:
            if given and given.strip():
                self.value = given if self.choices else fields.read_number(given, self.unit)
        except ValueError as error:
            return f"No guess yet: {error}"
        return self._state()


@dataclass(frozen=True)
class Reveal:
    """A guess (None: there was none) beside the result, in `unit`; `label` says where the result comes from."""

    question: str
    guess: float | str | None
    result: float | str
    unit: str = ""
    label: str = "measured"
    evidence: str = ""  # what speaks against the guess

    @property
    def ratio(self) -> float | None:
        """Return result / guess, None for choices, without a guess, or where one is not above zero."""
        if not (isinstance(self.guess, float) and isinstance(self.result, float)):
            return None
        return self.result / self.guess if self.guess > 0 and self.result > 0 else None

    right = property(lambda self: self.guess == self.result, doc="Whether the guess equals the result.")

    @property
    def verdict(self) -> str:
        """Compare guess and result in one sentence; empty without a guess."""
        if self.guess is None:
            return ""
        if self.right:
            return "The guess was right."
        if self.ratio is None:
            if self.evidence:
                return f"Not that: {self.evidence}"
            return f"You guessed {_shown(self.guess, self.unit)}; it is {_shown(self.result, self.unit)}."
        if abs(self.ratio - 1) < 0.05:
            return "The guess was within 5 % of the result."
        times, words = (self.ratio, "The result is {} times the guess.")
        if times < 1:
            times, words = (1 / times, "The guess is {} times the result.")
        return words.format(_shown(float(f"{times:.3g}")))

    def _rows(self) -> list[tuple[str, str]]:
        guess = [] if self.guess is None else [("guess", _shown(self.guess, self.unit))]
        return [*guess, (self.label, _shown(self.result, self.unit))]

    def __str__(self) -> str:
        from course_utils import tables  # it loads torch, for which no guess should wait

        return f"{tables.text(self._rows())}\n{self.verdict}".rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from course_utils import tables

        shown = f"<p>{html.escape(self.question)}</p>{tables.to_html(self._rows(), named=True)}"
        if not self.verdict:
            return shown
        kind = "right" if self.right or (self.ratio and abs(self.ratio - 1) < 0.05) else "plain"
        return look.frame(kind, shown, look.headline(self.verdict))


def _shown(value: float | str | None, unit: str = "") -> str:
    """Return whole numbers with all digits, others with four significant ones."""
    if isinstance(value, float):
        value = f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
    return f"{value} {unit}".rstrip()


def _written(value: float | str | None) -> str:
    """Return the number with all its digits, as the field holds it."""
    return "" if value is None else str(value).removesuffix(".0")
