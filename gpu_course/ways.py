"""Ways through the course: which pages lead to a goal, and which exercise comes next on them.

`ways.toml` states them. `progress.follow("evening")` chooses one, which is kept beside the progress.
"""

import functools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_course import solved

__all__ = ["Way", "chosen", "follow", "in_order", "left", "minutes", "practice", "spine", "ways"]

_KEPT = "way"  # under which the chosen way is kept beside the progress


@dataclass(frozen=True)
class Way:
    """A goal, and the pages or sections that lead to it, such as "02"; of each the spine is enough."""

    name: str
    goal: str
    pages: tuple[str, ...]

    @property
    def exercises(self) -> list[solved.Key]:
        """Return the exercises of the spines of its pages, in order, each once."""
        return list(dict.fromkeys(key for page in self.pages for key in spine(page)))


@functools.cache
def _stated() -> dict:
    return tomllib.loads(Path(__file__).with_name("ways.toml").read_text(encoding="utf-8"))


def ways() -> dict[str, Way]:
    """Return all ways, by name."""
    return {row["name"]: Way(row["name"], row["goal"], tuple(row["pages"])) for row in _stated()["ways"]}


def spine(page: str) -> list[solved.Key]:
    """Return the exercises on the spine of a page or a section, in its order, as pairs of lesson and name."""
    return _keys("spine", page)


def practice(lesson: str) -> list[solved.Key]:
    """Return the exercises of a lesson that are for practice: what they need was taught and used before them."""
    return _keys("practice", lesson)


def minutes(key: solved.Key, stated: int) -> str:
    """Return how long an exercise takes, such as "20 min", and whether it is for practice."""
    return f"{stated} min{', for practice' if key in practice(key[0]) else ''}"


def _keys(table: str, page: str) -> list[solved.Key]:
    pairs = (one.split(".") for one in _stated()[table].get(page, []))
    return [(lesson, name) for lesson, name in pairs]


def chosen() -> Way | None:
    """Return the way that is followed, None where none was chosen."""
    return ways().get(solved.kept(_KEPT, str) or "")


def follow(name: str, *, over: bool = True) -> Way:
    """Follow the way `name` from now on, and return the one that is followed; not `over` another that was chosen.

    Raises ValueError with the names of all ways where there is none of that name.
    """
    if name not in ways():
        raise ValueError(f"name is {name!r}, it must be one of: {', '.join(ways())}")
    solved.keep(_KEPT, lambda before: name if over or before not in ways() else before, str)
    return chosen() or ways()[name]


def in_order(every: Iterable[solved.Key]) -> list[solved.Key]:
    """Return exercises in the order in which they come next.

    Those of the way that is followed come first, then those of spines, then what goes deeper; pages such as 08b last,
    and of each page what is for practice.
    """
    way = chosen()
    on_way = way.exercises if way else []

    def place(key: solved.Key) -> tuple:
        on_spine = spine(key[0])
        rank = on_way.index(key) if key in on_way else len(on_way)
        depth = (key not in on_spine) + (key in practice(key[0]))
        return rank, not key[0].isdecimal(), depth, key[0], (*on_spine, key).index(key)

    return sorted(every, key=place)


def left(after: solved.Key, of_lesson: list[solved.Key]) -> list[solved.Key]:
    """Return what comes after an exercise and is not solved: on the way that is followed, or in its lesson."""
    way = chosen()
    around = way.exercises if way and after in way.exercises else in_order(of_lesson)
    here, done = around.index(after), solved.solved()
    return [key for key in around[here:] + around[:here] if key not in done]
