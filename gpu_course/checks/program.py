"""Trial of a program's file through calls of its functions."""

import inspect
import linecache
import sys
import traceback
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, cast

import torch

from course_utils import counting
from gpu_course.checks.case import Case, Task, WrongAnswer

_LONGEST = 200  # signs of an error's first line that a message shows


class ProgramCase(Case):
    """A case whose answer is a program: the text of a file with `functions`, by name how many arguments each takes.

    `load` executes the text; `run` and `counted` call a function. A program has its process to itself: nothing that it
    sets is put back, and who starts the process limits its time.
    """

    def __init__(self, task: Task, source: str, file: str, functions: Mapping[str, int]) -> None:
        super().__init__(task, cast(Any, types.ModuleType(task.name)), torch.device("cpu"))
        self.source, self.file, self.functions = source, file, functions

    def load(self) -> Self:
        """Execute the text. Raises `WrongAnswer` where it raises, lacks a function, or has one that takes others."""
        module: Any = self.answer
        module.__file__ = self.file
        linecache.cache[self.file] = (len(self.source), None, self.source.splitlines(keepends=True), self.file)
        sys.modules[module.__name__] = module  # for dataclasses and pickle
        with self._blamed("the file"):
            exec(compile(self.source, self.file, "exec"), module.__dict__)
        missing = [name for name in self.functions if not callable(getattr(module, name, None))]
        self.fail_if(missing, f"lacks {', '.join(missing)}", "the functions of the given program are called")
        for name, count in self.functions.items():
            other = not _takes(getattr(module, name), count)
            self.fail_if(other, f"{name} takes other arguments", "it is called as that of the given program")
        return self

    def run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the program's function `name` and return its value. Raises `WrongAnswer` if it raises or leaves."""
        with self._blamed(name):
            return getattr(self.answer, name)(*args, **kwargs)

    def counted(self, name: str, *args: Any) -> Any:
        """Do as `run` does, and keep in `counts` what the call did, which takes a quarter longer."""
        with counting.count() as self.counts:
            return self.run(name, *args)

    @contextmanager
    def _blamed(self, what: str) -> Iterator[None]:
        """Raise `WrongAnswer` with the program's own line for whatever the block raises, SystemExit too."""
        try:
            yield
        except WrongAnswer:
            raise
        except BaseException as error:
            own = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == self.file]
            line = (str(error).strip().splitlines() or [""])[0]
            self.fail(
                f"{what} raises {type(error).__name__}: {line[:_LONGEST]}",
                f"line {own[-1].lineno}: {own[-1].line}" if own else "",
            )


def _takes(function: Any, count: int) -> bool:
    """Return whether `function` can be called with `count` arguments, also where nothing says so."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # written in C
        return True
    return True
