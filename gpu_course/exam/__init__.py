"""What can I do that I could not do before? An examination of twelve items, before the course and after it.

    exam.before()                 # shows the items; in JupyterLab and Colab with fields
    exam.before().answer(1, 3)    # item 1, option 3: where no fields appear
    exam.before().result()

Items read a trace, a report, a schedule, an error or a kernel. Their numbers are drawn anew for each reader, and their
answers are computed by running what they describe. `exam.line("Ada")` gives the results as one line to send.
"""

import importlib
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from course_utils import devices
from gpu_course import fields, misconceptions, settings
from gpu_course import solved as store
from gpu_course.exam import items, results
from gpu_course.exam.items import Generator, Item
from gpu_course.exam.paper import Paper
from gpu_course.exam.results import PREFIX, SKILLS, Person, Result, class_section, read

__all__ = [
    "EACH", "MINUTES", "PREFIX", "SKILLS", "Examination", "Paper", "Person", "Result", "after", "bank", "before",
    "class_section", "drawn", "line", "read",
]  # fmt: skip

EACH, MINUTES = 2, 15  # items of each skill; minutes for all
_KIND = "exam"
_PAPERS: dict[str, "Examination"] = {}  # for the kernel's life: a cell that runs again keeps its fields


def bank(skill: str = "") -> list[Generator]:
    """Return the generators of a skill, or all: each makes items of one kind."""
    for name in (skill,) if skill else SKILLS:
        importlib.import_module(f"{__package__}.{name}")
    return [found for found in items.BANK.values() if found.skill == skill or not skill]


def drawn(asked: Sequence[tuple[str, int]]) -> list[tuple[Generator, Item]]:
    """Return the items of these generators and seeds. Where they need a simulated GPU, it may be in a child process."""
    known = _known()
    made = None
    if any(known[name].simulated for name, _ in asked):
        made = devices.on_simulated(_items, list(asked))
        if made is None:  # no simulated GPU, of which the reader has been told
            asked = [(name, seed) for name, seed in asked if not known[name].simulated]
    if made is None:
        made = _items(asked)
    return [(known[name], item) for (name, _), item in zip(asked, made, strict=True)]


def _known() -> dict[str, Generator]:
    return {found.name: found for found in bank()}


def _items(asked: Sequence[tuple[str, int]]) -> list[Item]:
    """Return the items, without their proofs, which another process could not send.

    They are drawn with usual settings; the reader's settings and random state stay as they are.
    """
    known, state = _known(), settings.read()
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)
            return [replace(known[name].item(seed), proof=None) for name, seed in asked]
    finally:
        settings.put_back(state)


def before() -> "Examination":
    """Return the examination before the course: 12 items, 15 minutes. It may be left out."""
    return _paper("before")


def after() -> "Examination":
    """Return the examination after the course; its result stands beside that of the one before."""
    return _paper("after")


def _paper(kind: str) -> "Examination":
    return _PAPERS.setdefault(kind, Examination(kind))


class Examination:
    """Twelve items, two of each skill, that are drawn when they are first looked at, and kept with the progress."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._made: Paper | None = None

    @property
    def paper(self) -> Paper:
        """The items with their answers; they are drawn at the first look."""
        if self._made is None:
            state = _state(self.kind)
            if not state:
                state = {"asked": _chosen(), "answers": {}}
                _keep(self.kind, state)
            answers = {int(number): value for number, value in state["answers"].items()}
            title = f"Examination {self.kind} the course: {len(state['asked'])} items, {MINUTES} minutes."
            made = drawn([(name, seed) for name, seed in state["asked"]])
            self._made = Paper(title, made, answers, self._take, judges=False)
        return self._made

    def answer(self, number: int, value: float | str) -> str:
        """Answer item `number`, counted from 1, with a number or with the number of an option; return what is said."""
        return self.paper.answer(number, value)

    def _take(self, number: int, value: float | str) -> None:
        state = _state(self.kind)
        state["answers"][str(number)] = value
        _keep(self.kind, state)

    def result(self) -> Result:
        """Return how many items of each skill are right, the gain against before, and the cells to read again."""
        marks: dict[str, tuple[int, int]] = {}
        read: dict[str, tuple[str, ...]] = {}
        for number, (found, item) in enumerate(self.paper.drawn, 1):
            right, asked = marks.get(found.skill, (0, 0))
            is_right = self.paper.right(number)
            marks[found.skill] = right + is_right, asked + 1
            if not is_right:
                given = item.misconception(self.paper.answers.get(number, ""))
                read[found.skill] = (*read.get(found.skill, ()), _place(given or found.about[0], found))
        state = _state(self.kind)
        state |= {"marks": {skill: list(each) for skill, each in marks.items()}}
        state |= {"believed": self.paper.given_misconceptions()}
        _keep(self.kind, state)
        return Result(marks, _marks("before") if self.kind == "after" else {}, read)

    def reset(self) -> None:
        """Forget the items and the answers; others are drawn at the next look."""
        self._made = None
        _keep(self.kind, {})

    def _intro(self) -> str:
        count = EACH * len(SKILLS)
        told = f"Examination {self.kind} the course: {count} items in six skills, {MINUTES} minutes."
        return f"{told}\n`print(exam.{self.kind}().paper)` shows them as text."

    def __str__(self) -> str:
        return self._intro()

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return fields.bundle({"text/plain": str(self)}, self._controls)

    def _controls(self) -> Any:
        """Return a button that draws the items, and below them one that shows the result."""
        import ipywidgets as widgets

        begin, end = widgets.Button(description="Show the items"), widgets.Button(description="Show my result")
        box, shown = widgets.VBox([widgets.HTML(self._intro()), begin]), widgets.HTML()

        def start(_: Any) -> None:
            box.children = [self.paper.widget(), end, shown]

        def finish(_: Any) -> None:
            shown.value = self.result()._repr_html_()

        begin.on_click(start)
        end.on_click(finish)
        return box


def _chosen() -> list[tuple[str, int]]:
    """Return two generators of each skill with a seed each, by chance."""
    chance = random.SystemRandom()
    found = [one for skill in SKILLS for one in chance.sample(bank(skill), EACH)]
    return [(one.name, chance.randrange(10**6)) for one in found]


def _place(name: str, found: Generator) -> str:
    """Return where to read what refutes the misconception `name`; of a slip where the generator's idea stands."""
    for each in (name, *found.about):
        one = misconceptions.get(each)
        if isinstance(one, misconceptions.Misconception):
            return one.place
    return ""


def _state(kind: str) -> dict[str, Any]:
    kept = store.kept(_KIND)
    return dict(kept.get(kind) or {}) if isinstance(kept, dict) else {}


def _keep(kind: str, state: dict[str, Any]) -> None:
    store.keep(_KIND, lambda kept: {**(kept if isinstance(kept, dict) else {}), kind: state})


def _marks(kind: str) -> dict[str, tuple[int, int]]:
    return {skill: (right, asked) for skill, (right, asked) in _state(kind).get("marks", {}).items()}


def line(name: str) -> str:
    """Return the results as one line of text for an instructor's map: how many items of each skill were right, and by
    which misconceptions others were wrong; nothing else.
    """
    believed = [each for kind in ("before", "after") for each in _state(kind).get("believed", [])]
    return results.line(name, _marks("before"), _marks("after"), believed)
