"""Owner of a line of code: the user's cell or file, Python, or a library.

A package is a library where it is installed, or where its `__init__` says `__tracebackhide__ = True`.
"""

import functools
import importlib.util
import linecache
import os
import site
import sys
import sysconfig
from pathlib import Path

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
