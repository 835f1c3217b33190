"""Runs programs and tests that say `cuda`, each in a process of its own: the notebook's may have a real GPU."""

import contextlib
import functools
import importlib.util
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import simgpu
from course_utils import explain

__all__ = ["excerpt", "run", "run_tests"]

_POLL_S = 0.5
_COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE")  # a notebook sets them: its output would hold a terminal's commands
_HANG_S = 900.0  # ends what hangs: on a busy machine a program of ten seconds takes minutes


def run(
    program: Path, *arguments: str, gpu: str, shapes: bool = False, data_ms: float | None = None,
    steps: int | None = None, progress: bool = False, compiled: bool = False,
) -> simgpu.Report:  # fmt: skip
    """Run a program that says `cuda` on a simulated GPU, in a process of its own, and return the report.

    `program` is a file, a notebook, or the folder of a package with a `__main__.py`; it starts in the folder in which
    that stands. A file of a package runs as a part of it, as with `python -m package.module`.
    `gpu` is a row of `simgpu.gpus`, such as "H100 SXM". With `shapes` no values are computed, so that a large model is
    quick; `data_ms` is what a batch of a DataLoader takes, in milliseconds (None: what it takes here); after so many
    `steps` the program is ended; with `compiled` the report says what `torch.compile` would bring. What the program
    prints is printed at its end, and so are its messages of errors; with `progress` a line says every few seconds how
    far it is. Where it fails, the report is that of the time before, and says so first. Raises `simgpu.Unavailable`
    where this machine can have no simulated GPU, and FileNotFoundError where there is no such program.
    """
    program = Path(program).absolute()
    if not program.exists():
        raise FileNotFoundError(f"there is no {program}: a path counts from {Path.cwd()}, or begins with Path.home()")
    with tempfile.TemporaryDirectory(prefix="progress-") as folder:
        told = Path(folder) / "steps"
        told.touch()
        how = {"shapes": shapes, "data_ms": data_ms, "steps": steps, "compiled": compiled}
        wait = functools.partial(_shown, told, progress)
        return simgpu.run_in_child(_run, str(program), arguments, gpu, how, str(told), wait=wait, gpus=1)


def _shown(told: Path, progress: bool, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has ended, and print meanwhile what it writes into a file, where `progress` is wanted."""
    ends_s = time.monotonic() + _HANG_S
    with told.open(encoding="utf-8") as lines:
        while time.monotonic() < ends_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            if progress:
                print(lines.read(), end="", flush=True)
            if process.returncode is not None:
                return
    raise subprocess.TimeoutExpired(process.args, _HANG_S)


def _run(program: str, arguments: tuple[str, ...], gpu: str, how: dict[str, Any], told: str) -> simgpu.Report:
    sys.argv = [program, *arguments]
    folder = Path(program).parent
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    for colours in _COLOURS:
        os.environ.pop(colours, None)
    with open(told, "w", encoding="utf-8") as lines:
        return _recorded(program, simgpu.cuda(gpu, record=True, progress=lines, **how))


def _recorded(program: str, session: Any) -> simgpu.Report:
    with contextlib.redirect_stderr(sys.stdout):  # where a cell shows it
        errors: list[BaseException] = []

        def failed(error: BaseException, cell: int = 0) -> None:
            errors.append(error)
            session.session.failed(error, cell)

        try:
            with session:
                _start(program, failed)
        except Exception as error:  # which the session knows
            errors.append(error)
        except (SystemExit, KeyboardInterrupt) as error:
            if not isinstance(error, SystemExit) or error.code:
                failed(error)
        report = session.report()
        if report.failure is not None or not report.used:
            print(str(report).splitlines()[1])
        for explanation in map(explain.explain, errors[-1:]):
            if explanation.name != "unknown":
                print(explanation)
    return report


def _start(program: str, failed: Callable[[BaseException, int], None]) -> None:
    path = Path(program)
    if path.suffix == ".ipynb":
        simgpu.run_notebook(path, keep_going=False, failed=failed, traces=False)
    elif path.is_dir() or (path.parent / "__init__.py").exists():
        folder, name = _module(path)
        sys.path.insert(0, folder)
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")


def _module(path: Path) -> tuple[str, str]:
    """Return the folder from which a package is imported, and the name in it of a package or of a module."""
    names, folder = [path.name.removesuffix(".py")], path.parent
    while (folder / "__init__.py").exists():
        names, folder = [folder.name, *names], folder.parent
    return str(folder), ".".join(names)


def run_tests(file: Path, *options: str) -> str:
    """Return what `python -m pytest -q --tb=no OPTIONS FILE` prints, in a process of its own."""
    if importlib.util.find_spec("pytest") is None:
        return "pytest is not installed here: pip install pytest"
    quiet = ("-q", "-p", "no:cacheprovider", "--tb=no", "--color=no")
    command = [sys.executable, "-m", "pytest", *quiet, *options, str(file)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "150"}
    done = subprocess.run(
        command, cwd=file.parent, env=environment, capture_output=True, text=True, encoding="utf-8", errors="replace"
    )
    return done.stdout + done.stderr


def excerpt(program: Path, first: str, last: str) -> str:
    """Return the lines of a program from the one that begins with `first` to the one with `last`, with their numbers.

    Leading spaces do not count. Raises ValueError where the program has no such line.
    """
    lines = program.read_text(encoding="utf-8").splitlines()
    begins = [line.strip() for line in lines]
    for wanted in (first, last):
        if not any(line.startswith(wanted) for line in begins):
            raise ValueError(f"{program.name} has no line that begins with {wanted!r}")
    start = next(at for at, line in enumerate(begins) if line.startswith(first))
    end = next(at for at, line in enumerate(begins) if at >= start and line.startswith(last))
    return "\n".join(f"{at + 1:4} {lines[at]}" for at in range(start, end + 1))
