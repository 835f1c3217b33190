"""Paper of an examination, shown, answered and judged: in widgets, or by `print(paper)` and `answer(1, 3)` as text."""

import html
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from course_utils import arguments
from gpu_course import fields, look, misconceptions
from gpu_course.exam.items import UNKNOWN, Generator, Item, Question, Value

__all__ = ["Judged", "Paper", "item_text", "judged"]

_WIDTH = 100  # of questions as text, in letters
_UNKNOWN = "I do not know"
# Lines of code stay whole on a narrow page, where JupyterLab would break words; they do not make the page wider.
_CODE = "white-space: pre; overflow-x: auto; width: 0; min-width: 100%"


def item_text(number: int, item: Question) -> str:
    """Return an item as text: what it shows, its question, and the options with their numbers."""
    options = [f"   {at}) {option}" for at, option in enumerate(item.options, 1)]
    unit = f" (a number, in {item.unit})" if item.unit else "" if item.options else " (a number)"
    shown = ["", *(f"    {line}" for line in item.shown.splitlines()), ""] if item.shown else []
    asked = textwrap.fill(f"{number}. {item.text}{unit}", _WIDTH, subsequent_indent="   ", break_long_words=False)
    return "\n".join([asked, *shown, *options]).rstrip()


def item_html(number: int, item: Question) -> str:
    """Return what an item shows and asks, for a browser; the options are left to a control."""
    shown = f'<pre tabindex="0" style="{_CODE}">{html.escape(item.shown)}</pre>' if item.shown else ""
    unit = f" (in {html.escape(item.unit)})" if item.unit else ""
    return f"<p><b>{number}.</b> {look.inline(item.text)}{unit}</p>{shown}"


@dataclass(frozen=True)
class Judged:
    """What an answer is worth: what is right, how that is found, and which belief the answer showed.

    - `given`: the answer, "?" of who does not know, None where the item was left empty; `answer`: the right one;
    - `belief`: the id of the misconception or the slip that gives this answer, "" where none is known to;
    - `about`: the id of the misconception whose cell to read again.
    """

    question: Question
    given: Value | None
    right: bool
    answer: Value
    steps: tuple[str, ...]
    belief: str
    about: str

    @property
    def empty(self) -> bool:
        """Whether the item was left empty, which is no wrong answer."""
        return self.given is None

    @property
    def read(self) -> misconceptions.Misconception:
        """Where to read again."""
        misconception = misconceptions.get(self.about)
        assert isinstance(misconception, misconceptions.Misconception)
        return misconception

    def said(self) -> str:
        """Return in some sentences whether the answer is right, what is so, and where to read it again."""
        again = "" if self.right else f" Read again: {self.read.place}."
        return f"{self._verdict()}{again}"

    def said_html(self) -> str:
        """Return the same for a browser, with a link to the heading in the lesson."""
        place, link = html.escape(self.read.place), html.escape(self.read.link)
        again = "" if self.right else f' Read again: <a href="{link}" target="_blank">{place}</a>.'
        return look.inline(self._verdict()) + again

    def _verdict(self) -> str:
        right, steps = _value(self.answer, self.question.unit), " ".join(self.steps)
        if self.right:
            return f"Right: {right}. {steps}"
        wrong = "" if self.given in (None, UNKNOWN) else "That is wrong. "
        return f"{wrong}The answer is {right}. {steps} {self._belief()}".rstrip()

    def _belief(self) -> str:
        if not self.belief:
            return ""
        misconception = misconceptions.get(self.belief)
        if isinstance(misconception, misconceptions.Misconception):
            return f"Who answers so may believe: “{misconception.believed}” {misconception.instead}"
        return f"A slip that gives this answer: {misconception.name[0].lower()}{misconception.name[1:]}."

    def _given(self) -> str:
        if self.given is None:
            return "You left it empty."
        given = _UNKNOWN if self.given == UNKNOWN else _value(self.given, self.question.unit)
        return f"Your answer: {given}."

    def text(self, number: int) -> str:
        """Return the item, what was answered and what is right, as text."""
        said = textwrap.fill(f"{self._given()} {self.said()}", _WIDTH, initial_indent="   ", subsequent_indent="   ")
        return f"{item_text(number, self.question)}\n{said}"

    def to_html(self, number: int) -> str:
        """Return the same for a browser."""
        options = "".join(f"<li>{html.escape(option)}</li>" for option in self.question.options)
        asked = item_html(number, self.question) + (f"<ol>{options}</ol>" if options else "")
        kind = "right" if self.right else "plain" if self.empty or self.given == UNKNOWN else "wrong"
        return look.frame(kind, asked, f"<p>{html.escape(self._given())} {self.said_html()}</p>")


def judged(found: Generator, item: Item, given: Value | None) -> Judged:
    """Return what `given` is worth as an answer to `item`, which `found` has made."""
    is_right = given is not None and item.right(given)
    belief = "" if given in (None, UNKNOWN) or is_right else item.misconception(given)
    names = filter(None, (belief, *found.about))
    refuted = (name for name in names if isinstance(misconceptions.get(name), misconceptions.Misconception))
    return Judged(item.question(), given, is_right, item.answer, item.steps, belief, next(refuted))


def _value(value: Value, unit: str) -> str:
    """Return texts as they are, whole numbers with all their digits, others with four significant ones."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f} {unit}".rstrip() if float(value).is_integer() else f"{value:.4g} {unit}".rstrip()


class Paper:
    """Items and the answers that were given to them. `taken(number, value)` is called with each new answer.

    `say` returns what is to be said to the answer of an item, by its number; without it nothing is said.
    """

    def __init__(
        self,
        title: str,
        questions: Sequence[Question],
        answers: dict[int, Value] | None = None,
        taken: Callable[[int, Value], None] = lambda number, value: None,
        say: Callable[[int], Judged] | None = None,
    ) -> None:
        self.title, self.questions, self.answers, self.taken = title, list(questions), dict(answers or {}), taken
        self.closed = ""  # once it is a sentence, answers stay as they are
        self.above = ""  # HTML above the title, where there are widgets
        self._say, self._widget = say, None
        self._shown: dict[int, Any] = {}
        self._controls: list[Any] = []

    def answer(self, number: int, value: Value) -> str:
        """Answer item `number`, counted from 1: with a number, with the number of an option, or with "?".

        "?" says that you do not know. Returns what is to be said to the answer. Raises ValueError where there is no
        such item or option.
        """
        question = self._question(number)
        if value == UNKNOWN:
            return self._take(number, UNKNOWN)
        if not question.options:
            return self._take(number, arguments.number("value", value))
        if not (isinstance(value, int) and 1 <= value <= len(question.options)):
            raise ValueError(f"value must be the number of an option, 1 to {len(question.options)}, not {value!r}")
        return self._take(number, question.options[value - 1])

    def close(self, why: str) -> None:
        """Lock all answers; further ones are answered by `why`."""
        self.closed = why
        for control in self._controls:
            control.disabled = True

    def _question(self, number: int) -> Question:
        if not (isinstance(number, int) and 1 <= number <= len(self.questions)):
            raise ValueError(f"number must be 1 to {len(self.questions)}, not {number!r}")
        return self.questions[number - 1]

    def _take(self, number: int, given: Value) -> str:
        """Keep an answer and return the line below the item."""
        if self.closed:
            return self.closed
        self.answers[number] = given
        self.taken(number, given)
        if number in self._shown:
            self._shown[number].value = self._said_html(number)
        return self._said(number)

    def _said(self, number: int) -> str:
        if number not in self.answers:
            return ""
        return self._say(number).said() if self._say else f"Answer {number} is kept."

    def _said_html(self, number: int) -> str:
        if number not in self.answers:
            return ""
        return self._say(number).said_html() if self._say else html.escape(self._said(number))

    def __str__(self) -> str:
        parts = [self.title]
        for number, question in enumerate(self.questions, 1):
            parts += ["", item_text(number, question), *([self._said(number)] if self._said(number) else [])]
        return "\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p>{look.inline(self.title)}</p>"]
        for number, question in enumerate(self.questions, 1):
            options = "".join(f"<li>{html.escape(option)}</li>" for option in question.options)
            said = f"<p>{self._said_html(number)}</p>" if self._said_html(number) else ""
            parts.append(item_html(number, question) + (f"<ol>{options}</ol>" if options else "") + said)
        return "".join(parts)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return fields.bundle({"text/plain": str(self), "text/html": self._repr_html_()}, self.widget)

    def widget(self) -> Any:
        """Return the widget: the items with a field below each; the same one each time."""
        self._widget = self._widget or self._made()
        return self._widget

    def _made(self) -> Any:
        import ipywidgets as widgets

        rows: list[Any] = [widgets.HTML(f"{look.STYLE}{self.above}<p>{look.inline(self.title)}</p>")]
        for number, question in enumerate(self.questions, 1):
            control = self._control(question, self.answers.get(number))
            control.disabled = bool(self.closed)
            self._controls.append(control)
            self._shown[number] = widgets.HTML(self._said_html(number))
            control.observe(self._observer(number, question), names="value")
            rows += [widgets.HTML(item_html(number, question)), control, self._shown[number]]
        box = widgets.VBox(rows)
        box.add_class("course-ask")
        return box

    def _control(self, question: Question, given: Value | None) -> Any:
        import ipywidgets as widgets

        if question.options:
            options = [*((option, option) for option in question.options), (_UNKNOWN, UNKNOWN)]
            known = given if given in (*question.options, UNKNOWN) else None
            return widgets.RadioButtons(options=options, value=known, layout={"width": "auto"})
        text = "" if given is None else given if isinstance(given, str) else f"{given:g}"
        unit = f", in {question.unit}" if question.unit else ""
        hint = f"a number{unit}, or ? for “{_UNKNOWN}”"
        return widgets.Text(
            value=text, continuous_update=False, placeholder=hint, layout={"width": "24em", "max_width": "95%"}
        )

    def _observer(self, number: int, question: Question) -> Callable[[Any], None]:
        def take(change: Any) -> None:
            written = change["new"]
            if not written or not str(written).strip():
                return
            try:
                kept_as_text = question.options or written.strip() == UNKNOWN
                self._take(number, written.strip() if kept_as_text else fields.read_number(written, question.unit))
            except ValueError as error:
                self._shown[number].value = html.escape(str(error))

        return take
