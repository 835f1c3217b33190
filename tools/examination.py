"""Examination on paper, and its answers on another page of the site."""

import functools
import random
from typing import Any

from gpu_course import exam, misconceptions
from tools.misconceptions import sections

__all__ = ["answers", "paper"]

DRAW = 0  # of this paper; in a notebook every reader gets other items and other numbers


@functools.cache
def _drawn() -> list[tuple[Any, Any]]:
    return exam.drawn(exam.chosen(random.Random(DRAW)))


def paper() -> str:
    """Return the page of the questions; its last line leads to the answers."""
    title = f"{len(_drawn())} questions in six skills, {exam.MINUTES} minutes. Nobody is expected to know these before "
    title += (
        "lesson 01. `exam.before()` in lesson 00 and `exam.after()` in lesson 12 draw others, and judge your answers."
    )
    questions = exam.Paper(title, [item.question() for _, item in _drawn()])
    shown = questions._repr_html_().replace("\n", "&#10;")  # an empty line would end the HTML
    return f"# Examination\n\n{shown}\n\n[The answers](examination_answers.md)\n"


def answers() -> str:
    """Return the page of the answers: what is right, how it is found, and where the course explains it."""
    parts = ["# Answers to the examination\n\n[The questions](examination.md)\n"]
    for number, (found, item) in enumerate(_drawn(), 1):
        judged = exam.judged(found, item, item.answer)
        link = f"[{sections()[judged.read.cell]}](notebooks/{misconceptions.files()[judged.read.lesson]})"
        right = judged.said().removeprefix("Right: ")
        parts.append(f"**{number}.** {right} *Where?* Lesson {judged.read.lesson}, {link}.\n")
    return "\n".join(parts)
