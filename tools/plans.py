"""Cells of a plan for a class, and the mistakes that are most frequent in it.

The plans are the tables of docs/instructors/plans.md. A row names a lesson, headings to show and exercises to give.
`page` makes a page of each plan: for every exercise the mistakes that its check knows, and what to say.
"""

import re
from dataclasses import dataclass

from nbformat import NotebookNode

from gpu_course import catalogue
from tools import notebooks

__all__ = ["Plan", "Row", "cells", "exercises", "in_kernels", "page", "plans"]

PLANS = notebooks.ROOT / "docs" / "instructors" / "plans.md"
SHOWN = 3  # mistakes of an exercise, the first that its author wrote down: they are met most often
_ROW = re.compile(r"^\| (\d+) \| (\w*) ?\| (.*?) \| ?(.*?) ?\| ?(.*?) ?\|$", re.MULTILINE)
_RECALL = re.compile(r"\brecall\.ask\(")


@dataclass(frozen=True)
class Row:
    """A row: its minutes, its lesson ("" for a break), headings to show, exercises to give, and what goes wrong."""

    minutes: int
    lesson: str
    show: tuple[str, ...]
    give: tuple[str, ...]
    wrong: str


@dataclass(frozen=True)
class Plan:
    """A plan: its title, the name of its page, and its rows."""

    title: str
    name: str
    rows: tuple[Row, ...]

    @property
    def minutes(self) -> int:
        """Return how long it takes, breaks included."""
        return sum(row.minutes for row in self.rows)


def in_kernels(plan: Plan) -> list[Row]:
    """Return the plan's rows with those of one lesson joined: a class goes on with them in the same notebook."""
    joined: dict[str, Row] = {}
    for row in (row for row in plan.rows if row.lesson):
        known = joined.get(row.lesson, Row(0, row.lesson, (), (), ""))
        minutes = known.minutes + row.minutes
        joined[row.lesson] = Row(minutes, row.lesson, known.show + row.show, known.give + row.give, row.wrong)
    return list(joined.values())


def plans() -> list[Plan]:
    """Return the plans that are tables of lessons, in order."""
    found = []
    for section in PLANS.read_text(encoding="utf-8").split("\n## ")[1:]:
        title = section.partition("\n")[0]
        rows = tuple(_row(*groups) for groups in _ROW.findall(section))
        if any(row.lesson for row in rows):
            name = "plan_" + re.sub(r"\W+", "_", title.partition(":")[0].lower())
            found.append(Plan(title, name, rows))
    return found


def _row(minutes: str, lesson: str, show: str, give: str, wrong: str) -> Row:
    names = re.findall(r"`(\w+)`", give.partition(":")[0])
    return Row(int(minutes), lesson, tuple(re.findall(r"\*(.*?)\*", show)), tuple(names), wrong)


def cells(row: Row) -> list[NotebookNode]:
    """Return the cells that a row names, in the order of the lesson: sections to show, and exercises.

    Before them come the lesson's code cells above its first heading, without its questions on earlier lessons.

    Raises ValueError for a heading or an exercise that the lesson does not have.
    """
    lesson = _lesson(row).cells
    chosen, section, seen, given = [], set(), set(), _given(row, lesson)
    for index, cell in enumerate(lesson):
        if cell.cell_type == "markdown" and (headings := re.findall(r"^##+ (.*)", cell.source, re.MULTILINE)):
            section = {*headings}
            seen |= section
        first = not section and cell.cell_type == "code" and not _RECALL.search(cell.source)
        if first or section & {*row.show} or index in given:
            chosen.append(cell)
    if missing := {*row.show} - seen:
        raise ValueError(f"lesson {row.lesson} has no heading {sorted(missing)}")
    return chosen


def _lesson(row: Row) -> NotebookNode:
    """Return the notebook of a row."""
    (path,) = (path for path in notebooks.lessons() if notebooks.number(path) == row.lesson)
    return notebooks.read(path)


def _given(row: Row, lesson: list[NotebookNode]) -> set[int]:
    """Return which cells of a lesson are those of the row's exercises: of each the text, the stub and the check."""
    found = ((index, notebooks.CHECK.match(cell.source)) for index, cell in enumerate(lesson))
    checks = {check["name"]: index for index, check in found if check}
    if missing := {*row.give} - checks.keys():
        raise ValueError(f"lesson {row.lesson} has no exercise {sorted(missing)}")
    return {checks[name] - before for name in row.give for before in range(3)}


def exercises(row: Row) -> list[tuple[str, str]]:
    """Return the exercises that a row gives, as pairs of lesson and name: 00b has those of other lessons."""
    checks = filter(None, (notebooks.CHECK.match(cell.source) for cell in _lesson(row).cells))
    lessons = {check["name"]: check["lesson"] for check in checks}
    return [(lessons[name], name) for name in row.give]


def page(plan: Plan) -> str:
    """Return the page of a plan: for each of its exercises what goes wrong most often, and what to say."""
    known = {(one.lesson, one.name): one for one in catalogue.registry()}
    parts = [
        f"# {plan.title}: what goes wrong",
        f"{plan.minutes} minutes. Ask first what the learner expects the line to do, and let the check speak. It names "
        "each of these mistakes where an answer does what the mistake does.",
    ]
    for row in (row for row in plan.rows if row.lesson):
        parts.append(f"## Lesson {row.lesson}, {row.minutes} minutes")
        parts += [f"{row.wrong[0].upper()}{row.wrong[1:]}."] if row.wrong else []
        for lesson, name in exercises(row):
            exercise = known[lesson, name]
            mistakes = list({one.name: one for one in exercise.mistakes}.values())[:SHOWN]
            said = [f"| {one.name} | {one.why} |" for one in mistakes]
            table = "\n".join(["| what the answer does | what to say |", "|---|---|", *said])
            parts.append(f"### `{name}`: {exercise.task.title}, {exercise.task.minutes} minutes\n\n{table}")
    return "\n\n".join(parts) + "\n"
