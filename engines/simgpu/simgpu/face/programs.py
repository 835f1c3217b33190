"""`python -m simgpu`: a program, a package or a notebook that says `cuda`, `mps` or `xpu`, on simulated GPUs."""

import argparse
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from simgpu.device import cpu_fallback, hiding
from simgpu.face import notebooks, options, switch
from simgpu.reports import command as command_line

_USAGE = """python -m simgpu [options] program.py [its arguments]
       python -m simgpu [options] -m package [its arguments]
       python -m simgpu [options] notebook.ipynb"""


_INTERRUPTED = 130  # the exit status of shells


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program of the command line with a face on; errors and exit status are the program's own."""
    reads = options.parser(_USAGE)
    reads.add_argument("--keep-going", action="store_true", help="run a notebook's other cells after one that fails")
    reads.add_argument("-m", dest="package", nargs=argparse.REMAINDER, help="run a package or module by its name")
    reads.add_argument("program", nargs=argparse.REMAINDER, help="a Python program or a notebook, and its arguments")
    command_line.add_options(reads)
    given = reads.parse_args(arguments)
    command = given.package or given.program
    if not command:
        reads.error("which program? Give a file, or -m and the name of a package")
    if not given.package and not Path(command[0]).exists():
        sys.exit(f"python -m simgpu: can't open file {command[0]!r}: there is none")
    if not given.package and (wrong := _why_no_program(Path(command[0]))):
        sys.exit(f"python -m simgpu: {command[0]!r} is {wrong}")
    try:
        wished = command_line.wishes(given)
        how = {"memory": given.memory, "allocator": given.allocator, "errors": given.errors, "host": given.host}
        how |= {"races": given.races, "fp64": given.fp64}
        if said := hiding.hide_accelerators(children=False):
            print(f"python -m simgpu: {said}", file=sys.stderr)
        switch.of_kind(given.kind, gpu=given.gpu, gpus=given.gpus, **how)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        reads.exit(2, f"python -m simgpu: {error}\n")
    if given.package:
        _run(lambda session: _run_package(command), wished)
    elif command[0].endswith(".ipynb"):
        notebook, keep_going = Path(command[0]), given.keep_going
        _run(lambda session: sys.exit(notebooks.run(notebook, keep_going=keep_going, failed=session.failed)), wished)
    else:
        _run(lambda session: _run_program(command), wished)


def _why_no_program(path: Path) -> str:
    """Return why nothing can be run there, "" where that is not known; a folder may have a `__main__.py`."""
    if path.is_dir() and not (path / "__main__.py").exists():
        return f"a folder: name one of its programs, such as {path / 'train.py'}"
    if path.suffix == ".py" and not path.read_bytes().strip():
        return "an empty file"
    return ""


def _run_program(command: list[str]) -> None:
    sys.argv = command
    sys.path[0] = str(Path(command[0]).resolve().parent)
    runpy.run_path(command[0], run_name="__main__")


def _run_package(command: list[str]) -> None:
    sys.argv = command
    sys.path[0] = str(Path.cwd())
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def _run(program: Callable[[command_line.Session], None], wished: command_line.Wishes) -> None:
    """Run a program, then report. Where it fails, its traceback begins with its own first line."""
    with tempfile.TemporaryDirectory(prefix="simgpu-") as folder:
        _run_in(program, replace(wished, folder=folder))


def _run_in(program: Callable[[command_line.Session], None], wished: command_line.Wishes) -> None:
    session, here = wished.start(), os.getpid()
    command_line.tell_children(wished)
    cpu_fallback.read_environment_late()
    ended: BaseException | None = None

    def finish(error: BaseException | None) -> int:
        status = wished.finish(session, error)
        shutil.rmtree(str(wished.folder), ignore_errors=True)
        return status

    session.on_caught = lambda leave=os._exit: (status := finish(None), sys.stdout.flush(), leave(status))
    try:
        with command_line.ends(finish):
            program(session)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        ended = error
    if os.getpid() != here:  # a child that the program has forked
        raise SystemExit if ended is None else ended
    is_exit = isinstance(ended, SystemExit)
    status = wished.finish(session, None if is_exit and not ended.code else ended)
    if isinstance(ended, Exception):
        _show_only_program(ended)
        sys.excepthook(type(ended), ended, ended.__traceback__)
        sys.exit(1)
    if isinstance(ended, KeyboardInterrupt):
        sys.exit(getattr(ended, "status", _INTERRUPTED))
    sys.exit((is_exit and ended.code) or status)


def _show_only_program(error: BaseException) -> None:
    """Strip an error's traceback of frames of simgpu, and of `runpy` above the program.

    So do those that it came from. The message of a program that Python cannot read names the line, and needs no more.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _of_program(one)
            waiting += [one.__cause__, one.__context__]


def _of_program(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error without simgpu's entries; the whole where there are no others."""
    entries, trace = list[TracebackType](), error.__traceback__
    while trace is not None:
        starts = not entries and _is_of(trace, "runpy")
        if not starts and not _is_of(trace, "simgpu"):
            entries.append(trace)
        trace = trace.tb_next
    if not entries:
        return None if isinstance(error, SyntaxError) else error.__traceback__
    for entry, below in pairwise(entries):
        entry.tb_next = below
    entries[-1].tb_next = None
    return entries[0]


def _is_of(entry: TracebackType, package: str) -> bool:
    return entry.tb_frame.f_globals.get("__name__", "").partition(".")[0] == package
