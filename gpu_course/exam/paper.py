"""How is a set of items shown, answered and judged? In widgets, or by `ask(1)` and `answer(1, 3)` as text."""

import html
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from course_utils import arguments
from gpu_course import fields, look, misconceptions
from gpu_course.exam.items import Generator, Item

__all__ = ["Paper", "item_text", "remark", "verdict"]

_WIDTH = 100  # of questions as text, in letters


def item_text(number: int, item: Item) -> str:
    """Return an item as text: what it shows, its question, and the options with their numbers."""
    options = [f"   {at}) {option}" for at, option in enumerate(item.options, 1)]
    unit = f" (a number, in {item.unit})" if item.unit else "" if item.options else " (a number)"
    shown = ["", *(f"    {line}" for line in item.shown.splitlines()), ""] if item.shown else []
    asked = textwrap.fill(f"{number}. {item.text}{unit}", _WIDTH, subsequent_indent="   ", break_long_words=False)
    return "\n".join([asked, *shown, *options]).rstrip()


def item_html(number: int, item: Item) -> str:
    """Return what an item shows and asks, for a browser; the options are left to a control."""
    shown = f"<pre>{html.escape(item.shown)}</pre>" if item.shown else ""
    unit = f" (in {html.escape(item.unit)})" if item.unit else ""
    return f"<p><b>{number}.</b> {html.escape(item.text)}{unit}</p>{shown}"


def verdict(item: Item, given: float | str) -> str:
    """Return in some sentences whether an answer is right; to a wrong one, what is so and which cell to read again."""
    right = item.answer if isinstance(item.answer, str) else f"{_shown(item.answer)} {item.unit}".rstrip()
    if item.right(given):
        return f"Right: {right}. {' '.join(item.steps)}"
    return f"The answer is {right}. {' '.join(item.steps)} {remark(item.misconception(given))}".rstrip()


def _shown(value: float) -> str:
    """Return whole numbers with all their digits, others with four significant ones."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def remark(name: str) -> str:
    """Return what is so instead of a misconception, and where to read it again; nothing of a slip."""
    found = misconceptions.get(name) if name else None
    if isinstance(found, misconceptions.Misconception):
        return f"{found.instead} Read again: {found.place}."
    return ""


class Paper:
    """Items and the answers that were given to them. `taken(number, value)` is called with each new answer."""

    def __init__(
        self,
        title: str,
        drawn: Sequence[tuple[Generator, Item]],
        answers: dict[int, float | str] | None = None,
        taken: Callable[[int, float | str], None] = lambda number, value: None,
        *,
        judges: bool = True,
    ) -> None:
        self.title, self.drawn, self.answers, self.taken = title, list(drawn), dict(answers or {}), taken
        self._judges, self._widget = judges, None
        self.above = ""  # HTML above the title, where there are widgets
        self._shown: dict[int, Any] = {}

    def answer(self, number: int, value: float | str) -> str:
        """Answer item `number`, counted from 1: with a number, or with the number of an option.

        Returns what is to be said to it. Raises ValueError where there is no such item or option.
        """
        item = self._item(number)
        if item.options:
            if not (isinstance(value, int) and 1 <= value <= len(item.options)):
                raise ValueError(f"value must be the number of an option, 1 to {len(item.options)}, not {value!r}")
            given: float | str = item.options[value - 1]
        else:
            given = arguments.number("value", value)
        return self._take(number, given)

    def _item(self, number: int) -> Item:
        if not (isinstance(number, int) and 1 <= number <= len(self.drawn)):
            raise ValueError(f"number must be 1 to {len(self.drawn)}, not {number!r}")
        return self.drawn[number - 1][1]

    def _take(self, number: int, given: float | str) -> str:
        """Keep an answer and return the line below the item."""
        self.answers[number] = given
        self.taken(number, given)
        said = self._said(number)
        if number in self._shown:
            self._shown[number].value = html.escape(said)
        return said

    def _said(self, number: int) -> str:
        if number not in self.answers:
            return ""
        if not self._judges:
            return f"Answer {number} is kept."
        return verdict(self._item(number), self.answers[number])

    def right(self, number: int) -> bool:
        """Return whether item `number` was answered, and rightly."""
        return number in self.answers and self._item(number).right(self.answers[number])

    def __str__(self) -> str:
        parts = [self.title]
        for number, (_, item) in enumerate(self.drawn, 1):
            parts += ["", item_text(number, item), *([self._said(number)] if self._said(number) else [])]
        return "\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(self.title)}</p>"]
        for number, (_, item) in enumerate(self.drawn, 1):
            options = "".join(f"<li>{html.escape(option)}</li>" for option in item.options)
            said = f"<p>{html.escape(self._said(number))}</p>" if self._said(number) else ""
            parts.append(item_html(number, item) + (f"<ol>{options}</ol>" if options else "") + said)
        return "".join(parts)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return fields.bundle({"text/plain": str(self), "text/html": self._repr_html_()}, self.widget)

    def widget(self) -> Any:
        """Return the widget: the items with a field below each; the same one each time."""
        self._widget = self._widget or self._controls()
        return self._widget

    def _controls(self) -> Any:
        import ipywidgets as widgets

        rows: list[Any] = [widgets.HTML(f"{look.STYLE}{self.above}<p>{html.escape(self.title)}</p>")]
        for number, (_, item) in enumerate(self.drawn, 1):
            given = self.answers.get(number)
            if item.options:
                control = widgets.RadioButtons(options=list(item.options), value=given, layout={"width": "auto"})
            else:
                text = "" if given is None else f"{given:g}"
                field = {
                    "placeholder": f"a number{f', in {item.unit}' if item.unit else ''}",
                    "layout": {"width": "16em"},
                }
                control = widgets.Text(value=text, continuous_update=False, **field)
            self._shown[number] = widgets.HTML(html.escape(self._said(number)))
            control.observe(self._observer(number, item), names="value")
            rows += [widgets.HTML(item_html(number, item)), control, self._shown[number]]
        box = widgets.VBox(rows)
        box.add_class("course-ask")
        return box

    def _observer(self, number: int, item: Item) -> Callable[[Any], None]:
        def take(change: Any) -> None:
            written = change["new"]
            if not written:
                return
            try:
                self._take(number, written if item.options else fields.read_number(written, item.unit))
            except ValueError as error:
                self._shown[number].value = html.escape(str(error))

        return take

    def given_misconceptions(self) -> list[str]:
        """Return the ids of the misconceptions behind wrong answers, in the order of the items."""
        wrong = [number for number in self.answers if not self.right(number)]
        found = [self._item(number).misconception(self.answers[number]) for number in sorted(wrong)]
        return [name for name in found if name]
