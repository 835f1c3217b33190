"""Catalogue of the course's exercises and explorers, found in the lessons' folders."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from gpu_course.checks import Exercise
from ranklaunch import NoRanks

__all__ = ["explorer", "names", "numbers", "registry"]

_FOLDER = Path(__file__).parent


def numbers() -> list[str]:
    """Return the numbers of the lessons, in order: "08", and "08b", a page that no later lesson needs."""
    return sorted(path.parent.name.removeprefix("lesson") for path in _FOLDER.glob("lesson*/__init__.py"))


def registry() -> Iterator[Exercise]:
    """Yield every exercise of every lesson that runs on this PyTorch, in the order in which readers meet them."""
    for number, found in names().items():
        try:
            loaded = importlib.import_module(f"{__package__}.lesson{number}")
        except NoRanks:
            continue
        yield from [getattr(loaded, name) for name in found]


def names() -> dict[str, list[str]]:
    """Return the names of each lesson's exercises. They are read from the files: importing all takes over a second."""
    return {number: _names(_FOLDER / f"lesson{number}") for number in numbers()}


def _names(folder: Path) -> list[str]:
    """Return the names in the `__all__` of a lesson that have a file of answers, as exercises have."""
    door = ast.parse((folder / "__init__.py").read_text(encoding="utf-8")).body
    shown = next(node.value for node in door if isinstance(node, ast.Assign | ast.AnnAssign) and node.value)
    return [name for name in ast.literal_eval(shown) if (folder / f"{name}.diff").exists()]


def explorer(name: str) -> ModuleType:
    """Return the module of the explorer `name`. Raises ValueError where no lesson has it."""
    for path in sorted(_FOLDER.glob(f"lesson*/explorers/{name}.py")):
        return importlib.import_module(f"{__package__}.{path.parents[1].name}.explorers.{name}")
    raise ValueError(f"no lesson has an explorer named {name!r}")
