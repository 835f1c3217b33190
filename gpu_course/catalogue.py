"""Which exercises and explorers has the course? They stand in the folders of lessons."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from gpu_course.checks import Exercise

__all__ = ["explorer", "registry"]

_FOLDER = Path(__file__).parent


def registry() -> Iterator[Exercise]:
    """Yield every exercise of every lesson, in the order of the lessons and of their modules."""
    for lesson in sorted(module.name for module in pkgutil.iter_modules([str(_FOLDER)])):
        if lesson.startswith("lesson"):
            loaded = importlib.import_module(f"{__package__}.{lesson}")
            yield from (found for found in vars(loaded).values() if isinstance(found, Exercise))


def explorer(name: str) -> ModuleType:
    """Return the module of the explorer `name`. Raises ValueError where no lesson has it."""
    for path in sorted(_FOLDER.glob(f"lesson*/explorers/{name}.py")):
        return importlib.import_module(f"{__package__}.{path.parents[1].name}.explorers.{name}")
    raise ValueError(f"no lesson has an explorer named {name!r}")
