"""What is wrong, where is it to be looked for first, and what is it usually? A tree from symptoms to causes."""

import html
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils import arguments, plots, tables
from gpu_course.explorers import Choice, Explorer

__all__ = ["KINDS", "TABLE", "Symptom", "explore", "find", "table"]

KINDS = {"crash": "it crashes", "wrong": "it is wrong", "stuck": "it hangs or is slow"}


@dataclass(frozen=True)
class Symptom:
    """One row: `kind` is a key of KINDS, `lesson` the number of the lesson that explains it."""

    kind: str
    symptom: str
    tool: str
    causes: tuple[str, ...]
    lesson: str

    def __str__(self) -> str:
        return (
            f"{self.symptom[0].upper()}{self.symptom[1:]}. First look at: {self.tool}. "
            f"Usual causes: {', '.join(self.causes)}. Lesson {self.lesson}."
        )


def _rows() -> dict[str, dict[str, Symptom]]:
    read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        kind: {
            row["symptom"]: Symptom(kind, row["symptom"], row["tool"], tuple(row["causes"]), row["lesson"])
            for row in read[kind]
        }
        for kind in KINDS
    }


TABLE = _rows()  # by kind, then by symptom


def find(*, kind: str, **symptoms: str) -> Symptom:
    """Return the row at the end of the way: `kind` says which of the `symptoms`, one for each kind, counts.

    Raises ValueError that names a kind or symptom that the table does not have.
    """
    rows = TABLE[arguments.one_of("kind", kind, tuple(KINDS))]
    return rows[arguments.one_of(kind, symptoms[kind], tuple(rows))]


def draw(symptom: Symptom) -> Any:
    """Return the picture: the kinds, the symptoms of this kind, and the end of the way that was taken."""
    names = list(TABLE[symptom.kind])
    figure, axes = plots.new(height_in=0.5 + 0.42 * len(names))
    axes.set(xlim=(0, 100), ylim=(-0.6, len(names) - 0.4))
    axes.axis("off")
    middle, here = (len(names) - 1) / 2, len(names) - 1 - names.index(symptom.symptom)
    for index, (kind, words) in enumerate(KINDS.items()):
        height = middle + 1.3 * (1 - index)
        _box(axes, 1, height, words, chosen=kind == symptom.kind)
        if kind == symptom.kind:
            start = height
    for height_of_name, name in enumerate(reversed(names)):
        axes.plot(
            [17, 19.5],
            [start, height_of_name],
            color=plots.BLUE if height_of_name == here else plots.GRID,
            lw=1.2,
            zorder=0,
        )
        _box(axes, 20, height_of_name, name, chosen=height_of_name == here)
    axes.plot([22, 60, 63.5], [here, here, middle], color=plots.BLUE, lw=1.2, zorder=0)
    wrapped = ["First look at", *textwrap.wrap(symptom.tool, 36), "", "Usual causes"]
    wrapped += [line for one in symptom.causes for line in textwrap.wrap(f"- {one}", 36, subsequent_indent="  ")]
    text = "\n".join([*wrapped, "", f"Lesson {symptom.lesson}"])
    look = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": plots.BLUE}
    axes.text(64.5, middle, text, va="center", fontsize=8.5, bbox=look, linespacing=1.3)
    return figure


def _box(axes: Any, x: float, y: float, words: str, *, chosen: bool) -> None:
    colours = {"facecolor": "#cce3f0" if chosen else "white", "edgecolor": plots.BLUE if chosen else plots.GRID}
    axes.text(x, y, words, va="center", fontsize=8.5, bbox={"boxstyle": "round,pad=0.35", **colours})


class Table:
    """All symptoms, to be opened one by one in a page, with a kernel or without."""

    def __str__(self) -> str:
        rows = [(one.symptom, one.lesson) for kind in TABLE.values() for one in kind.values()]
        return tables.text(rows, ("symptom", "lesson"))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = []
        for kind, words in KINDS.items():
            inside = "".join(_opened(one) for one in TABLE[kind].values())
            parts.append(f"<details open><summary><b>{words.capitalize()}</b></summary>{inside}</details>")
        return "".join(parts)


def _opened(symptom: Symptom) -> str:
    causes = "".join(f"<li>{html.escape(cause)}</li>" for cause in symptom.causes)
    inside = f"<p>First look at: {html.escape(symptom.tool)} (lesson {symptom.lesson})</p><ul>{causes}</ul>"
    return f'<details style="margin-left: 1.5em"><summary>{html.escape(symptom.symptom)}</summary>{inside}</details>'


def table() -> Table:
    """Return the table of all symptoms."""
    return Table()


def explore() -> Explorer:
    """Return the explorer of lesson 11."""
    labels = {"crash": "How it crashes", "wrong": "What is wrong", "stuck": "What stands still"}
    symptoms = [Choice(kind, labels[kind], tuple(rows), next(iter(rows))) for kind, rows in TABLE.items()]
    kinds = Choice("kind", "What do you see?", tuple(KINDS), "crash", KINDS.get)

    def offered(chosen: Mapping[str, Any]) -> dict[str, int]:
        return {kind: len(rows) if kind == chosen["kind"] else 1 for kind, rows in TABLE.items()}

    return Explorer("from symptoms to causes", find, draw, str, [kinds, *symptoms], offered=offered)
