"""What can I do that I could not do before? An examination of twelve items, before the course and after it.

    exam.before()                 # shows the items; in JupyterLab and Colab with fields
    exam.before().answer(1, 3)    # item 1, option 3: where no fields appear
    exam.before().result()

Items read a trace, a report, a schedule, an error or a kernel. Their numbers are drawn anew for each reader, and their
answers are computed by running what they describe. `exam.line("Ada")` gives the results as one line to send.
"""

import functools
import importlib
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from course_utils import devices
from gpu_course import fields, look, settings
from gpu_course import solved as store
from gpu_course.exam import items, kept, results
from gpu_course.exam.items import Generator, Item, several
from gpu_course.exam.paper import Judged, Paper, judged
from gpu_course.exam.results import MARK, PREFIX, SKILLS, Person, Result, class_section, read

__all__ = [
    "EACH", "MARK", "MINUTES", "PREFIX", "SKILLS", "Examination", "Judged", "Paper", "Person", "Result", "after",
    "bank", "before", "chosen", "class_section", "drawn", "ended", "judged", "line", "read", "take",
]  # fmt: skip

EACH, MINUTES = 2, 15  # items of each skill; minutes for all
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
    if kind not in _PAPERS:
        _PAPERS[kind] = Examination(kind)
    return _PAPERS[kind]


class Examination:
    """Twelve items, two of each skill, that are drawn when they are first looked at, and kept with the progress.

    Once its result was shown, it is over: the answers stay as they are, and every item has its right answer beside it.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._made: list[tuple[Generator, Item]] | None = None  # the items, once they were looked at
        self._paper: Paper | None = None
        self._state, self._note = kept.load(kind)

    @property
    def taken(self) -> bool:
        """Whether the result was shown, here or in another notebook."""
        return self._state is not None and self._state.marks is not None

    @property
    def paper(self) -> Paper:
        """The items, without their answers; they are drawn at the first look."""
        if self._paper is None:
            questions = [item.question() for _, item in self._items()]
            assert self._state is not None
            title = f"Examination {self.kind} the course: {len(questions)} items, {MINUTES} minutes."
            taken = functools.partial(kept.answered, self.kind, self._state.seal)
            self._paper = Paper(f"{title} {self._note}".strip(), questions, self._state.answers, taken)
            if self.taken:
                self._paper.close(self._over())
        return self._paper

    def _items(self) -> list[tuple[Generator, Item]]:
        """Return the items: those that are kept, none where another machine or version had them, or new ones."""
        if self._made is None:
            state = self._state
            if state is not None:
                again = drawn(state.asked) if {name for name, _ in state.asked} <= _known().keys() else []
                same = kept.seal([item.question() for _, item in again]) == state.seal
                if same or self.taken:
                    self._made = again if same else []
                    return self._made
                self._note = kept.set_aside(self.kind)
            asked = chosen(random.SystemRandom())
            self._made = drawn(asked)
            names = {found.name for found, _ in self._made}  # where there is no simulated GPU, some cannot be asked
            asked = [each for each in asked if each[0] in names]
            self._state = kept.State(asked, kept.seal([item.question() for _, item in self._made]))
            kept.save(self.kind, self._state)
        return self._made

    def answer(self, number: int, value: float | str) -> str:
        """Answer item `number`, counted from 1, with a number, with the number of an option, or with "?".

        "?" says that you do not know. Returns what is said to it.
        """
        return self.paper.answer(number, value)

    def result(self) -> Result:
        """End the examination and return how many items of each skill are right, the gain, and every item's answer.

        Where nothing was answered yet, nothing ends.
        """
        if not self.taken:
            stored, _ = kept.load(self.kind)
            if stored is not None and stored.marks is not None:  # another notebook has ended it
                self._state = stored
        answers = self._state.answers if self.taken and self._state else self.paper.answers
        if not (answers or self.taken):
            return Result({}, {}, note="Nothing was answered yet, so there is no result.")
        made = self._items()
        marked = [judged(one, item, answers.get(at)) for at, (one, item) in enumerate(made, 1)]
        state = self._state
        assert state is not None
        if not self.taken:
            marks: results.Marks = {}
            for (one, _), each in zip(made, marked, strict=True):
                right, answered = marks.get(one.skill, (0, 0))
                if not each.empty:
                    marks[one.skill] = right + each.right, answered + 1
            state.answers, state.marks = answers, marks
            state.believed = [each.belief for each in marked if each.belief]
            kept.save(self.kind, state)
            self.paper.close(self._over())
        missing = "" if marked else "Its items are not shown: another machine or version of the course has them."
        before = _marks("before") if self.kind == "after" else {}
        return Result(state.marks or {}, before, tuple(marked), len(state.asked), missing)

    def reset(self) -> None:
        """Forget the items and the answers; others are drawn at the next look."""
        self._made = self._paper = self._state = None
        self._note = ""
        kept.forget(self.kind)

    def _over(self) -> str:
        return f"This examination is over, and its answers stay. `exam.{self.kind}().result()` shows them."

    def _intro(self) -> str:
        count = EACH * len(SKILLS)
        told = [f"Examination {self.kind} the course: {count} items in six skills, {MINUTES} minutes."]
        if self.taken:
            marks = ((self._state.marks if self._state else None) or {}).values()
            right, answered = sum(right for right, _ in marks), sum(count for _, count in marks)
            told = [f"Examination {self.kind} the course: taken, {right} of {answered} answers right.", self._over()]
            return "\n".join(told)
        if self.kind == "before":
            told.append('Nobody is expected to know these before lesson 01. If you do not know, answer "?".')
        return "\n".join([*told, *filter(None, [self._note]), f"`print(exam.{self.kind}().paper)` shows them as text."])

    def __str__(self) -> str:
        return self._intro()

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return fields.bundle({"text/plain": str(self)}, self._controls)

    def _controls(self) -> Any:
        """Return a button that draws the items, and below them one that shows the result."""
        import ipywidgets as widgets

        intro = widgets.HTML(f"<p>{look.inline(self._intro())}</p>".replace("\n", "<br>"))
        begin, end = widgets.Button(description="Show the items"), widgets.Button(description="Show my result")
        shown = widgets.HTML()
        box = widgets.VBox([intro, end, shown] if self.taken else [intro, begin])
        warned = []

        def start(_: Any) -> None:
            box.children = [self.paper.widget(), end, shown]

        def finish(_: Any) -> None:
            empty = 0 if self.taken else len(self.paper.questions) - len(self.paper.answers)
            if empty and self.paper.answers and not warned:
                warned.append(empty)
                shown.value = f"<p>{several(empty, 'item')} left empty. Click again to end: answers then stay.</p>"
            else:
                shown.value = self.result()._repr_html_()

        begin.on_click(start)
        end.on_click(finish)
        return box


def chosen(chance: random.Random) -> list[tuple[str, int]]:
    """Return two generators of each skill with a seed each, as `chance` draws them.

    The first third of the paper is easy, so that in a class of mixed level everybody can answer some.
    """
    while True:
        paper = [one for skill in SKILLS for one in chance.sample(bank(skill), EACH)]
        paper.sort(key=lambda one: (not _easy(one), one.lesson))
        if all(map(_easy, paper[: len(paper) // 3])):
            return [(one.name, chance.randrange(10**6)) for one in paper]


def _easy(question: Generator) -> bool:
    """Return whether an item takes a minute, and is about what the lessons up to the training loop explain."""
    return question.short and question.lesson <= "05"


def _marks(kind: str) -> results.Marks:
    state, _ = kept.load(kind)
    return (state.marks or {}) if state else {}


def line(name: str) -> str:
    """Return the results as one line of text for an instructor's map: how many items of each skill were right, and by
    which misconceptions others were wrong; nothing else.
    """
    states = [kept.load(kind)[0] for kind in ("before", "after")]
    believed = [each for state in states if state for each in state.believed]
    return results.line(name, store.code(), _marks("before"), _marks("after"), believed)


def ended() -> bool:
    """Return whether an exam has been finished, here or on a machine whose progress was imported."""
    return bool(_marks("before") or _marks("after"))


def take(said: Person) -> None:
    """Add the results that a line says to what is kept here; of each examination the first result counts."""
    believed = sorted(said.believed.elements())  # the line does not say by which of the two examinations
    for kind, marks in (("before", said.before), ("after", said.after)):
        if marks and not _marks(kind):
            kept.save(kind, kept.State([], "", {}, marks, believed))
            believed = []
