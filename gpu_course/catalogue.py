"""Which exercises and explorers has the course? They stand in the folders of lessons."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from gpu_course.checks import Exercise

__all__ = ["explorer", "names", "registry"]

_FOLDER = Path(__file__).parent
_EXERCISE = re.compile(r"^@exercise\(.*?^(?:def|class) (\w+)", re.MULTILINE | re.DOTALL)


def registry() -> Iterator[Exercise]:
    """Yield every exercise of every lesson, in the order of the lessons and of their modules."""
    for lesson in sorted(module.name for module in pkgutil.iter_modules([str(_FOLDER)])):
        if lesson.startswith("lesson"):
            loaded = importlib.import_module(f"{__package__}.{lesson}")
            yield from (found for found in vars(loaded).values() if isinstance(found, Exercise))


def names() -> dict[str, list[str]]:
    """Return the names of each lesson's exercises. They are read from the files: importing all takes over a second."""
    found = {}
    for folder in sorted(_FOLDER.glob("lesson*")):
        texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]
        found[folder.name.removeprefix("lesson")] = [name for text in texts for name in _EXERCISE.findall(text)]
    return found


def explorer(name: str) -> ModuleType:
    """Return the module of the explorer `name`. Raises ValueError where no lesson has it."""
    for path in sorted(_FOLDER.glob(f"lesson*/explorers/{name}.py")):
        return importlib.import_module(f"{__package__}.{path.parents[1].name}.explorers.{name}")
    raise ValueError(f"no lesson has an explorer named {name!r}")
