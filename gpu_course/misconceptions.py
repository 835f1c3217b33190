"""Misconceptions of learners: the belief, why people hold it, and the cell that refutes it.

`misconceptions.toml` holds them. Each wrong choice of a prediction belongs to one misconception, or to a slip, behind
which stands no belief; so does each mistake of an exercise, behind whose name the id stands (`checks.answers`). The
examination and the questions at the start of a lesson take their wrong answers from here.
"""

import functools
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = ["Misconception", "Slip", "choices_of_lessons", "every", "files", "get", "measured", "slips"]

_FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Slip:
    """A kind of mistake behind which stands no belief: its name and what it is, in a sentence.

    `choices` are wrong choices of predictions, such as "02:create-guess: 0": lesson, cell and choice.
    """

    id: str
    name: str
    what: str
    choices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Misconception:
    """Something that people believe and that is not so.

    - `believed`, `why`, `instead`: a sentence each: what is believed, why, and how it is;
    - `cell`: the cell that refutes it, such as "02:move", and `section`: the heading above that cell;
    - `choices`: as those of a `Slip`.
    """

    id: str
    name: str
    believed: str
    why: str
    instead: str
    cell: str
    section: str
    choices: list[str] = field(default_factory=list)

    lesson = property(lambda self: self.cell.partition(":")[0], doc="The number of the lesson that refutes it.")

    @property
    def place(self) -> str:
        """Return where to read again, in words."""
        return f"lesson {self.lesson}, “{self.section}”"

    @property
    def link(self) -> str:
        """Return where to read again, as a link from another lesson in JupyterLab."""
        heading = self.section.replace("`", "").replace(" ", "-")
        return f"{files()[self.lesson]}#{quote(heading, safe='?')}"


def every() -> list[Misconception]:
    """Return all misconceptions, in the order of the file."""
    return [Misconception(**row) for row in _data()["misconceptions"]]


def slips() -> list[Slip]:
    """Return the kinds of mistakes behind which stands no belief."""
    return [Slip(**row) for row in _data()["slips"]]


def get(name: str) -> Misconception | Slip:
    """Return the misconception or the slip with this id. Raises ValueError where there is none."""
    if name not in _by_id():
        raise ValueError(f"no misconception and no slip is called {name!r}")
    return _by_id()[name]


def measured() -> list[str]:
    """Return the predictions whose right choice depends on the machine, so that no choice is a belief."""
    return list(_data()["measured"])


def choices_of_lessons() -> dict[str, str]:
    """Return lessons in which every wrong choice of a prediction belongs to one misconception, with its id."""
    return dict(_data()["choices_of_lessons"])


def files() -> dict[str, str]:
    """Return the file name of each lesson's notebook, by the number of the lesson."""
    return dict(_data()["notebooks"])


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@functools.cache
def _by_id() -> dict[str, Misconception | Slip]:
    return {one.id: one for one in [*every(), *slips()]}
