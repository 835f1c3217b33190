"""Which exercises has the course? A room for each lesson: references, checks, mistakes, and their helpers."""

import importlib
import pkgutil
from collections.abc import Iterator

from course_utils.checks import Exercise

__all__ = ["registry"]


def registry() -> Iterator[Exercise]:
    """Yield every exercise of every lesson, in the order of the lessons and of their modules."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        if module.name.startswith("lesson"):
            loaded = importlib.import_module(f"{__name__}.{module.name}")
            yield from (found for found in vars(loaded).values() if isinstance(found, Exercise))
