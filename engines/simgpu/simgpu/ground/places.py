"""Owner of a line of code: the reader's cell or file, Python, or a library; the reader's line that is running.

A package is a library where it is installed, or where its `__init__` says `__tracebackhide__ = True`.
"""

import functools
import importlib.util
import inspect
import linecache
import math
import os
import re
import site
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = [
    "called", "cell", "condition", "has_closure", "is_generated", "is_readers", "name_callers", "named",
    "place", "place_of", "stack", "warn",
]  # fmt: skip

_OURS = str(Path(__file__).parents[1]) + os.sep
_PACKAGES = {"site-packages", "dist-packages"}  # folders of installed packages, also of `pip install --target`


def cell(file: str) -> str:
    """Return the name of the cell in `file`, as a stack names it: "cell [5]", "cell" without its number; "" if none."""
    path = Path(file)
    if not path.parent.name.startswith("ipykernel_") and not path.name.startswith(("ipython-input-", "<ipython-input")):
        return ""
    inputs, text = getattr(sys.modules.get("__main__"), "_ih", ()), "".join(linecache.getlines(file)).rstrip()
    magic = f", {text + chr(10)!r})"  # what ends the call of a magic such as `%%capture`, which runs what is below it
    numbers = (n for n in range(len(inputs) - 1, 0, -1) if inputs[n].rstrip() == text or magic in inputs[n])
    return next((f"cell [{n}]" for n in numbers), "cell")  # not by IPython's names: Colab's have no number


def is_generated(file: str, function: str) -> bool:
    """Return whether code is generated: Python's start, graphs, methods of dataclasses; `python -c` is "<string>"."""
    made = file == "<string>" and (function == "<module>" or function.startswith("__"))
    return made or file.startswith(("<frozen", "<eval_with_key>"))


def is_readers(file: str, function: str) -> bool:
    """Return whether the reader wrote `function`, which a stack finds in `file`."""
    return _is_readers(file, function, _program())


@functools.cache  # asked again and again of each function on a stack
def _is_readers(file: str, function: str, program: str) -> bool:
    return not is_generated(file, function) and _is_readers_file(file, program)


@functools.cache
def _is_readers_file(file: str, program: str) -> bool:
    path = os.path.abspath(file)
    beside = bool(program) and os.path.dirname(path) == os.path.dirname(os.path.abspath(program))
    if cell(file) or beside:
        return True
    return _PACKAGES.isdisjoint(Path(path).parts) and not path.startswith((*_installed(), *_hidden()))


def _program() -> str:
    """Return the file that Python runs as a program, "" for none: what lies beside it is no library where installed.

    `python -m package` runs a package, and that stays one.
    """
    main = sys.modules.get("__main__")
    return getattr(main, "__file__", None) or "" if getattr(main, "__spec__", None) is None else ""


def _hidden() -> list[str]:
    """Return the folders of imported packages that say `__tracebackhide__ = True`, wherever they are."""
    packages = [module for name, module in sys.modules.copy().items() if "." not in name]
    hidden = [module for module in packages if getattr(module, "__tracebackhide__", False) is True]
    return [folder + os.sep for module in hidden for folder in getattr(module, "__path__", ())]


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the folders of Python's own code and of installed packages."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages()]
    paths += [path for path in sys.path if path and any(Path(path).glob("*.dist-info"))]  # by `pip install --target`
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        paths += [str(Path(torch.origin).absolute().parents[1])]
    return tuple(path + os.sep for path in paths if path)


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an optimizer's `step` was given a closure, from what its hooks are told."""
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None


def place() -> str:
    """Return the reader's innermost line that is running: "train.py:12: y = model(x)", or "" if there is none."""
    program = _program()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _is_readers(code.co_filename, code.co_name, program):
            return named(code.co_filename, frame.f_lineno)  # of this frame alone: to find a line takes time
        frame = frame.f_back
    return ""


def stack() -> list[str]:
    """Return the reader's lines that are running, as `place` names them, the innermost first."""
    program = _program()
    lines, frame = list[str](), sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _is_readers(code.co_filename, code.co_name, program):
            lines.append(named(code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return lines


def called() -> str:
    """Return what the reader's innermost line calls, such as "self.net" in `y = self.net(x)`, "" for no name."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    frame = next((one for one in frames if is_readers(one.f_code.co_filename, one.f_code.co_name)), None)
    place = None if frame is None else inspect.getframeinfo(frame, 0).positions
    if frame is None or place is None or place.lineno is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, place.lineno).encode()[place.col_offset :].decode()
    return "".join(re.findall(r"^([\w.]+(?:\[[\w.]+\])*)\(", line))


def condition() -> str:
    """Return the reader's line "if …:" that the innermost running line stands right below, or ""."""
    program = _program()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_readers(frame.f_code.co_filename, frame.f_code.co_name, program):
        frame = frame.f_back
    if frame is None:
        return ""
    file, number = frame.f_code.co_filename, frame.f_lineno
    inner = _indentation(linecache.getline(file, number))
    while number > 1 and _indentation(linecache.getline(file, number)) >= inner:
        number -= 1
    above = linecache.getline(file, number).strip()
    return named(file, number) if above.startswith("if ") else ""


def _indentation(line: str) -> float:
    return len(line) - len(line.lstrip()) if line.strip() else math.inf


def place_of(error: BaseException) -> str:
    """Return the reader's innermost line from which `error` came, as `place` does, or ""."""
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        if is_readers(frame.f_code.co_filename, frame.f_code.co_name):
            return named(frame.f_code.co_filename, number)
    return ""


@functools.cache
def _named(file: str, program: str, _inputs: int) -> str:
    """Return how `file` is named before the number of a line: from the program's folder, if it is in there.

    `_inputs` cells have run: one that runs again has a new number.
    """
    if name := cell(file):
        return f"{name}, line "
    path, folder = Path(os.path.abspath(file)), Path(os.path.abspath(program)).parent
    return f"{path.relative_to(folder).as_posix() if program and path.is_relative_to(folder) else path.name}:"


def named(file: str, number: int) -> str:
    """Return how a line is named: "train.py:12: y = model(x)"."""
    text = linecache.getline(file, number).strip()
    where = f"{_named(file, _program(), len(getattr(sys.modules.get('__main__'), '_ih', ())))}{number}"
    return f"{where}: {text}" if text else where


def name_callers(put: Callable[..., None]) -> None:
    """Replace `warnings.showwarning`: a warning that would name simgpu names what has called simgpu."""
    plain = warnings.showwarning

    def showwarning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any) -> None:
        stack = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe(1))]
        above = stack[stack.index((filename, lineno)) :] if (filename, lineno) in stack else []
        where = next((one for one in above if not one[0].startswith(_OURS)), (filename, lineno))
        plain(message, category, *where, *more)

    put(warnings, showwarning=showwarning)


def warn(words: str) -> None:
    """Warn of the reader's innermost line that is running, once for each line as Python does."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        code = frame.f_code
        if is_readers(code.co_filename, code.co_name):
            seen = frame.f_globals.setdefault("__warningregistry__", {})
            warnings.warn_explicit(words, UserWarning, code.co_filename, line, registry=seen)
            return
    warnings.warn(words, UserWarning, stacklevel=3)
