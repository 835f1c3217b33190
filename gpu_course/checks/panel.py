"""Display of a verdict: text, and in a notebook a panel with the same words and buttons."""

import textwrap
from collections.abc import Callable
from typing import Any

from gpu_course import fields, look
from gpu_course.checks.finding import Finding

__all__ = ["Panel", "buttons", "right_panel", "show_alone", "wrong_panel"]


class Panel:
    """A verdict: its words, the same words as HTML, and what makes the buttons below them, if there are any."""

    def __init__(self, text: str, html_text: str, below: Callable[[], Any] | None = None) -> None:
        self.text, self.html, self._below = text, html_text, below

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.html

    def show(self) -> None:
        """Show the panel in a notebook, and the buttons as an output of their own; print the words elsewhere."""
        if not fields.in_kernel():
            print(self.text)
            return
        from IPython.display import display

        display(self)
        if self._below is not None:
            show_alone(self._below)


def show_alone(make: Callable[[], Any]) -> None:
    """Show the widget that `make` returns without a word: where there are no widgets, nothing.

    A saved notebook that is opened without its widgets then still has what stands above them.
    """
    from IPython.display import display

    if bundle := fields.bundle({}, make):
        display(bundle, raw=True)


def right_panel(name: str, where: str, lines: list[str], below: Callable[[], Any] | None) -> Panel:
    """Return the panel of an answer that is right on the devices `where`, with lines that say what to try next."""
    said = [f"{name}: right. Checked on {where}.", *lines]
    shown = look.frame("right", look.headline(said[0]), *(f"<div>{look.inline(line)}</div>" for line in lines))
    return Panel("\n".join(said), shown, below)


def wrong_panel(name: str, finding: Finding, hint: str, below: Callable[[], Any] | None) -> Panel:
    """Return the panel of a wrong answer: the call, what is wrong as its headline, expected beside got, and why."""
    seen, _, more = finding.name.partition("\n")
    values = {"expected:": finding.expected, "got:": finding.got}
    values = {label: value for label, value in values.items() if value}
    printed = textwrap.dedent(finding.said).strip().partition("\n")
    shown = [
        look.quiet(f"{name}: not right yet."),
        look.mono(finding.call) if finding.call else "",
        look.headline(seen),
        look.mono(textwrap.dedent(more)) if more else "",
        look.compared(values) if values else "",
        f"<div>{look.inline(finding.reason)}</div>" if finding.reason else "",
        look.quiet(printed[0]) + look.mono(textwrap.dedent(printed[2])) if finding.said else "",
        look.quiet(hint),
    ]
    return Panel(f"{name}: not right yet.\n{finding}\n{hint}", look.frame("wrong", *shown), below)


def buttons(calls: dict[str, Callable[[], str]]) -> Any:
    """Return a widget: a row of buttons, each with what its call says below it. The calls themselves stay."""
    import ipywidgets as widgets

    said = widgets.HTML()

    def shows(call: Callable[[], str]) -> Callable[[Any], None]:
        def click(_: Any) -> None:
            said.value = look.frame("plain", look.mono(call()))

        return click

    row = []
    for name, call in calls.items():
        button = widgets.Button(description=name, layout={"width": "auto"})
        button.on_click(shows(call))
        row.append(button)
    return widgets.VBox([widgets.HBox(row), said, widgets.HTML(look.FOCUS, layout={"display": "none"})])
