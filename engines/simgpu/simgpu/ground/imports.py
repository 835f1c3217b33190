"""Work that waits for the import of a module."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after(name: str, do: Callable[[ModuleType], None]) -> Callable[[], None]:
    """Call `do(module)` as soon as the module `name` has been imported, or now where it is.

    Returns a function that cancels the call if it is still to come.
    """
    finder = _After(name, do)
    if name in sys.modules:
        do(sys.modules[name])
    else:
        sys.meta_path.insert(0, finder)

    def cancel() -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)

    return cancel


class _After:
    """Finds one module as Python would, once, and calls a function when it has run."""

    def __init__(self, name: str, do: Callable[[ModuleType], None]) -> None:
        self._name, self._do = name, do

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._do(module)

        spec.loader.exec_module = exec_module
        return spec
