"""Whose is a line of code: the reader's, from a cell or a file, or that of Python, a library or this course?"""

from __future__ import annotations

import functools
import importlib.util
import os
import site
import sysconfig
from pathlib import Path

__all__ = ["in_cell", "is_generated", "is_readers"]


def in_cell(file: str) -> bool:
    """Return whether `file`, as a stack names it, is a cell."""
    path = Path(file)
    if path.parent.name.startswith("ipykernel_"):
        return True
    return path.name.startswith(("ipython-input-", "<ipython-input"))  # of Colab, of IPython


def is_generated(file: str, function: str) -> bool:
    """Return whether nobody wrote this: Python's start, methods made by dataclasses. `python -c` is "<string>" too."""
    return file.startswith("<frozen") or (file == "<string>" and (function == "<module>" or function.startswith("__")))


def is_readers(file: str, function: str) -> bool:
    """Return whether the reader wrote `function`, which a stack finds in `file`."""
    return not is_generated(file, function) and _is_readers_file(file)


@functools.cache
def _is_readers_file(file: str) -> bool:
    return in_cell(file) or not os.path.abspath(file).startswith(_libraries())


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of code that is not the reader's: Python's own, installed packages, this package."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages()]
    torch = importlib.util.find_spec("torch").origin
    paths += [str(Path(torch).absolute().parents[1]), str(Path(__file__).absolute().parents[1])]
    return tuple(path + os.sep for path in paths if path)
