"""Recall: three short questions on earlier lessons at the start of each, with no penalty.

    recall.ask("05")                  # in JupyterLab and Colab with fields
    recall.ask("05").answer(1, 3)     # question 1, option 3: where no fields appear

Each lesson comes back one, three and six lessons after itself, with those of its questions that were asked least. One
question that was missed is asked again; a second run of the cell has other questions.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpu_course import catalogue, exam
from gpu_course import solved as store
from gpu_course.progress import here

__all__ = ["GAPS", "LESSONS", "ask", "plan"]

GAPS = (1, 3, 6)  # lessons between a lesson and its questions
LESSONS = tuple(
    int(each) for each in catalogue.numbers() if each.isdecimal() and int(each) >= 2
)  # begin with questions
COUNT = 3
_KIND = "recall"
_PAPERS: dict[str, exam.Paper] = {}  # for the kernel's life: a cell that runs again keeps its answers


def plan(lesson: str, missed: Sequence[str] = (), turn: int = 0) -> list[str]:
    """Return the names of the generators that the lesson asks: one that was missed first, then by the gaps.

    Turns count from 0. Over the lessons of two turns every short question of the course is asked.
    """
    ideas: dict[int, list[str]] = {}
    for question in exam.bank():
        if question.short:
            ideas.setdefault(int(question.lesson), []).append(question.name)
    number, asked = int(lesson), Counter[str]()
    for _ in range(turn):
        for each in LESSONS:
            asked.update(_due(each, ideas, asked))
    for each in (each for each in LESSONS if each < number):
        asked.update(_due(each, ideas, asked))
    again = [name for name in missed if any(name in ideas[each] for each in ideas if each < number)][:1]
    return list(dict.fromkeys([*again, *_due(number, ideas, asked)]))[:COUNT]


def _due(number: int, ideas: dict[int, list[str]], asked: Counter[str]) -> list[str]:
    """Return the questions that a lesson asks, when those before it have asked what `asked` counts.

    Of each lesson at one of the gaps it is the question that was asked least; where fewer lessons have gone by, further
    ones of all earlier lessons take the place, those of the nearest first.
    """
    due = [min(ideas[number - gap], key=asked.__getitem__) for gap in GAPS if number - gap in ideas]
    earlier = [name for each in sorted(ideas, reverse=True) if each < number for name in ideas[each]]
    due += sorted((name for name in earlier if name not in due), key=asked.__getitem__)
    return due[:COUNT]


def ask(lesson: str) -> exam.Paper:
    """Return three questions on lessons before `lesson`, such as "05"; after all are answered, a call gives others.

    Raises ValueError where there are no earlier lessons.
    """
    if not (isinstance(lesson, str) and lesson.isdigit() and len(lesson) == 2 and int(lesson) >= 2):
        raise ValueError(f"lesson must be the two digits of a lesson from '02' on, not {lesson!r}")
    paper = _PAPERS.get(lesson)
    if paper is None or len(paper.answers) == len(paper.questions):
        state = _state(store.kept(_KIND, dict))
        turn = state["turns"].get(lesson, 0)
        asked = [(name, 1000 * int(lesson) + turn) for name in plan(lesson, state["missed"], turn)]
        made = exam.drawn(asked)

        def say(number: int) -> exam.Judged:
            return exam.judged(*made[number - 1], paper.answers.get(number))  # pyright: ignore[reportOptionalMemberAccess]

        title = "Three questions on earlier lessons, two minutes, no penalty."
        paper = _PAPERS[lesson] = exam.Paper(title, [item.question() for _, item in made], say=say)
        paper.taken = lambda number, value: _note(lesson, made[number - 1][0].name, say(number).right, _all(paper))
        paper.above = here(lesson)
    return paper


def _all(paper: exam.Paper) -> bool:
    return len(paper.answers) == len(paper.questions)


def _note(lesson: str, name: str, is_right: bool, is_last: bool) -> None:
    """Record missed questions until they are answered rightly; the last answer begins the next turn."""

    def change(kept: Any) -> dict[str, Any]:
        state = _state(kept)
        missed = [each for each in state["missed"] if each != name]
        turns = state["turns"]
        if is_last:
            turns[lesson] = turns.get(lesson, 0) + 1
        return {"missed": missed if is_right else [*missed, name], **turns}

    store.keep(_KIND, change, dict)


def _state(kept: Any) -> dict[str, Any]:
    """Return the kept state as far as it can be read: names that were `missed`, and `turns` of each lesson."""
    kept = kept if isinstance(kept, dict) else {}
    missed = kept.get("missed")
    names = [name for name in missed if isinstance(name, str)] if isinstance(missed, list) else []
    turns = {lesson: turn for lesson, turn in kept.items() if isinstance(turn, int) and 0 <= turn < 1000}
    return {"missed": names, "turns": turns}
