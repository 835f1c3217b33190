"""What is an item of the examination, and how is one drawn?

An item is made by a generator, a function of a `random.Random`, so that its numbers differ from draw to draw. Its right
answer is computed: the program that the item shows is run, or the formula of the lesson is worked out. Its wrong
answers are what known misconceptions give.

    @generator("place", "to-in-place")
    def bytes_copied(draw: random.Random) -> Item:
        ...
        return number("How many bytes are copied?", answer, {4 * answer: "elements-are-bytes"}, steps, proof)
"""

import contextlib
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_course import misconceptions

__all__ = ["BANK", "Clash", "Generator", "Item", "choice", "generator", "is_close", "number"]

Value = float | str
WITHIN = 0.02  # of a number that is not counted
CHOICES = 5
_TRIES = 200


class Clash(ValueError):
    """Two answers of this draw are the same, so that it cannot be asked; another draw can."""


@dataclass(frozen=True)
class Item:
    """A question with one right answer.

    - `text`: the question; `shown`: the program, trace, report or table that it is about, or "";
    - `answer`: a number in `unit`, or one of `options`;
    - `wrong`: what known misconceptions give instead, with their ids; of a question with options all the others;
    - `steps`: how the answer is found, a sentence each;
    - `proof()` returns the answer again, from running what the item describes or from counting it out.
    """

    text: str
    shown: str
    answer: Value
    unit: str
    options: tuple[str, ...]
    wrong: Mapping[Value, str]
    steps: tuple[str, ...]
    proof: Callable[[], Value] | None

    def right(self, given: Value) -> bool:
        """Return whether `given` is the answer; of numbers that are not counted, 2 % more or less are right too."""
        return is_close(given, self.answer)

    def misconception(self, given: Value) -> str:
        """Return the id of the misconception that gives `given`, or "" where none is known to."""
        return next((name for value, name in self.wrong.items() if is_close(given, value)), "")


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
    """Return an item whose answer is a number in `unit`. Wrong answers that this draw makes right are left out."""
    kept: dict[Value, str] = {}
    for value, name in wrong.items():
        if not any(is_close(value, one) or is_close(one, value) for one in (answer, *kept)):
            kept[value] = name
    if not kept:
        raise Clash(f"no wrong answer differs from {answer}")
    return Item(text, shown.strip("\n"), answer, unit, (), kept, steps, proof)


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
    return Item(text, shown.strip("\n"), answer, "", tuple(options), chosen, steps, proof)


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
        found: Any = misconceptions.get(self.about[0])
        return found.lesson

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
