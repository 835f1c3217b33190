"""Items of the examination, and their drawing.

An item is made by a generator, a function of a `random.Random`, so that its numbers differ from draw to draw. Its right
answer is computed: the program that the item shows is run, or the formula of the lesson is worked out. Its wrong
answers are what known misconceptions give.

    @generator("place", "elements-are-bytes")
    def size_of_tensor(draw: random.Random) -> Item:
        ...
        return number("How many bytes does it take?", answer, {elements: "elements-are-bytes"}, steps, proof)
"""

import contextlib
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_course import misconceptions

__all__ = [
    "BANK", "UNKNOWN", "Clash", "Generator", "Item", "Question", "but", "choice", "generator", "is_close", "number",
    "several",
]  # fmt: skip

Value = float | str
WITHIN = 0.02  # of a number that is not counted
APART = 2 * WITHIN  # by which a wrong number differs at least, so that one that was rounded is not right
UNKNOWN = "?"  # the answer of who does not know
CHOICES = 5
_TRIES = 200


class Clash(ValueError):
    """Two answers of this draw are the same, so that it cannot be asked; another draw can."""


@dataclass(frozen=True)
class Question:
    """What is asked: the `text`, what is `shown` with it, or "", and the `unit` of a number or the `options`."""

    text: str
    shown: str
    unit: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Item(Question):
    """A question with its one right answer.

    - `answer`: a number in `unit`, or one of `options`;
    - `wrong`: what known misconceptions give instead, with their ids; of a question with options all the others;
    - `steps`: how the answer is found, a sentence each;
    - `proof()` returns the answer again, from running what the item describes or from counting it out.
    """

    answer: Value
    wrong: Mapping[Value, str]
    steps: tuple[str, ...]
    proof: Callable[[], Value] | None

    def right(self, given: Value) -> bool:
        """Return whether `given` is the answer; of numbers that are not counted, 2 % more or less are right too."""
        return is_close(given, self.answer)

    def misconception(self, given: Value) -> str:
        """Return the id of the misconception that gives `given`, or "" where none is known to, or `given` is right."""
        near = [value for value in self.wrong if is_close(given, value)]
        if not near or self.right(given):
            return ""
        return self.wrong[min(near, key=lambda value: 0 if given == value else abs(float(given) - float(value)))]

    def question(self) -> Question:
        """Return what is asked, without the answer."""
        return Question(self.text, self.shown, self.unit, self.options)


def is_close(given: Value, value: Value) -> bool:
    """Return whether `given` may stand for `value`: exactly where this is a text or counted, else within 2 %."""
    if isinstance(given, str) or isinstance(value, str | int):
        return given == value
    return math.isclose(given, value, rel_tol=WITHIN)


def number(
    text: str,
    answer: float,
    wrong: Mapping[int, str] | Mapping[float, str],
    steps: tuple[str, ...],
    proof: Callable[[], Value] | None = None,
    *,
    unit: str = "",
    shown: str = "",
) -> Item:
    """Return an item whose answer is a number in `unit`.

    Raises Clash where a wrong answer is right, or so near that tolerance or rounding would make it right.
    """
    counted = isinstance(answer, int)
    for value in wrong:
        if value == answer or (not counted and math.isclose(value, answer, rel_tol=APART)):
            raise Clash(f"{value} is wrong and cannot be told from {answer}")
    beliefs: dict[Value, str] = {**wrong}  # pyright: ignore[reportGeneralTypeIssues]
    return Item(text, shown.strip("\n"), unit, (), answer, beliefs, steps, proof)


def several(count: int, noun: str, many: str = "") -> str:
    """Return how many there are of something, such as "1 text" and "4 texts", or "4 people" where `many` says so."""
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def but(answer: float, values: Mapping[int, str]) -> dict[int, str]:
    """Return `values` without the one that this draw makes right."""
    return {value: name for value, name in values.items() if value != answer}


def choice(
    draw: random.Random,
    text: str,
    answer: str,
    wrong: Mapping[str, str],
    steps: tuple[str, ...],
    proof: Callable[[], Value] | None = None,
    *,
    shown: str = "",
) -> Item:
    """Return an item with five options in a random order: the answer, and four of `wrong`."""
    others = [value for value in wrong if value != answer]
    if len(others) < CHOICES - 1:
        raise Clash(f"fewer than {CHOICES} options")
    others = draw.sample(others, CHOICES - 1)
    options = draw.sample([answer, *others], CHOICES)
    chosen: dict[Value, str] = {value: wrong[value] for value in others}
    return Item(text, shown.strip("\n"), "", tuple(options), answer, chosen, steps, proof)


@dataclass(frozen=True)
class Generator:
    """What makes items of one kind, all of the same difficulty.

    - `name`, `skill`: what it is called, and one of the six skills;
    - `about`: ids of the misconceptions that it tries, the first one first: their cells are those to read;
    - `short`: whether the item can be answered within a minute, as the questions at the start of a lesson are;
    - `simulated`: whether it needs the simulated GPU.
    """

    name: str
    skill: str
    about: tuple[str, ...]
    short: bool
    simulated: bool
    make: Callable[[random.Random], Item]

    @property
    def lesson(self) -> str:
        """Return the number of the lesson that it is about."""
        misconception: Any = misconceptions.get(self.about[0])
        return misconception.lesson

    def item(self, seed: int | str) -> Item:
        """Return the item of this seed: the same for the same seed."""
        draw = random.Random(f"{self.name} {seed}")
        for _ in range(_TRIES - 1):
            with contextlib.suppress(Clash):
                return self.make(draw)
        return self.make(draw)


BANK: dict[str, Generator] = {}


def generator(
    skill: str, *about: str, short: bool = False, simulated: bool = False
) -> Callable[[Callable[[random.Random], Item]], Generator]:
    """Put the function below into the bank, under its name; the arguments are fields of `Generator`."""

    def put(make: Callable[[random.Random], Item]) -> Generator:
        BANK[make.__name__] = Generator(make.__name__, skill, about, short, simulated, make)
        return BANK[make.__name__]

    return put
