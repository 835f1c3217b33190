"""What do I still know of earlier lessons? Three short questions at the start of each, with no penalty.

    recall.ask("05")                  # in JupyterLab and Colab with fields
    recall.ask("05").answer(1, 3)     # question 1, option 3: where no fields appear

Each idea comes back one, three and six lessons after its own, with other numbers. What was missed is asked again.
"""

from collections.abc import Sequence
from typing import Any

from gpu_course import exam
from gpu_course import solved as store
from gpu_course.progress import here

__all__ = ["GAPS", "ask", "plan"]

GAPS = (1, 3, 6)  # lessons between an idea and its questions
COUNT = 3
_KIND = "recall"
_PAPERS: dict[str, exam.Paper] = {}  # for the kernel's life: a cell that runs again keeps its answers


def plan(lesson: str, missed: Sequence[str] = ()) -> list[str]:
    """Return the names of the generators that the lesson asks: what was missed first, then by the gaps.

    The idea of a lesson that is asked after one lesson is the one that is asked after three and six; where that many
    lessons have not gone by, further ideas of the nearest lessons take the place.
    """
    number = int(lesson)
    ideas: dict[int, list[str]] = {}
    for found in exam.bank():
        if found.short and int(found.lesson) < number:
            ideas.setdefault(int(found.lesson), []).append(found.name)
    due = [name for name in missed if any(name in names for names in ideas.values())][:COUNT]
    due += [ideas[number - gap][0] for gap in GAPS if number - gap in ideas]
    for earlier in sorted(ideas, reverse=True):
        due += ideas[earlier]
    return list(dict.fromkeys(due))[:COUNT]


def ask(lesson: str) -> exam.Paper:
    """Return three questions on lessons before `lesson`, such as "05"; after all are answered, a call gives others.

    Raises ValueError where there are no earlier lessons.
    """
    if not (isinstance(lesson, str) and lesson.isdigit() and len(lesson) == 2 and int(lesson) >= 2):
        raise ValueError(f"lesson must be the two digits of a lesson from '02' on, not {lesson!r}")
    paper = _PAPERS.get(lesson)
    if paper is None or len(paper.answers) == len(paper.drawn):
        state = _state()
        turn = state.get(lesson, 0)
        asked = [(name, 1000 * int(lesson) + turn) for name in plan(lesson, state.get("missed", []))]
        title = "Three questions on earlier lessons, two minutes, no penalty."
        paper = _PAPERS[lesson] = exam.Paper(title, exam.drawn(asked))
        paper.taken = lambda number, value: _note(lesson, paper, number)
        paper.above = here(lesson)
    return paper


def _note(lesson: str, paper: exam.Paper, number: int) -> None:
    """Keep what was missed, and forget it when it is answered rightly; with the last answer the next turn begins."""
    name = paper.drawn[number - 1][0].name

    def change(kept: Any) -> dict[str, Any]:
        state = kept if isinstance(kept, dict) else {}
        missed = [each for each in state.get("missed", []) if each != name]
        state["missed"] = missed if paper.right(number) else [*missed, name]
        if len(paper.answers) == len(paper.drawn):
            state[lesson] = state.get(lesson, 0) + 1
        return state

    store.keep(_KIND, change)


def _state() -> dict[str, Any]:
    kept = store.kept(_KIND)
    return kept if isinstance(kept, dict) else {}
