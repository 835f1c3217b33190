"""Runs on the simulated GPU, in a child process, where this process has a real GPU.

In a child process that hides the real one: `python -m simgpu.device.child_process FILE` reads a function and its
arguments from FILE and writes into it what the function returned or raised.
"""

import contextlib
import inspect
import linecache
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from types import CodeType
from typing import Any

from simgpu.device.hiding import HIDDEN, hide_accelerators

LIMIT_S = 180.0


class Unavailable(RuntimeError):
    """The simulated GPU cannot be had on this machine, also not in a child process: the message says why."""


def run_in_child(
    fn: Callable[..., Any],
    *args: Any,
    limit_s: float = LIMIT_S,
    wait: Callable[[subprocess.Popen[bytes]], object] | None = None,
    gpus: int = 2,
) -> Any:
    """Return what `fn(*args)` returns in a child process that has simulated GPUs, and print what it printed there.

    `fn` may be typed in a cell; neither it nor `args` may hold what is on a real GPU. There are `gpus` simulated GPUs.
    Raises `Unavailable` with the reason where the child has no simulated GPU either, RuntimeError with the child's
    traceback where `fn` raises, and subprocess.TimeoutExpired where it takes longer than `limit_s`. Whoever measures
    its time in another way than by the clock gives `wait`, which returns when the child has ended; if that raises, the
    child is killed.
    """
    from simgpu.ground import by_value

    with tempfile.TemporaryDirectory(prefix="simulated-") as folder:
        file = Path(folder) / "call"
        file.write_bytes(pickle.dumps((sys.path, sources(fn), by_value.dumps((fn, args)), gpus)))
        status = _finished(file, wait or (lambda process: process.wait(limit_s)))
        printed, errors = (_text(file.with_suffix(kind)) for kind in (".out", ".err"))
        if status:
            raise Unavailable((errors.strip().splitlines() or [f"exit status {status}"])[-1])
        outcome, value = pickle.loads(file.read_bytes())
    print(printed, end="")
    if outcome == "unavailable":
        raise Unavailable(value)
    if outcome == "raised":
        raise RuntimeError(f"on the simulated GPU of a child process {value}")
    return pickle.loads(value)


def _finished(file: Path, wait: Callable[[subprocess.Popen[bytes]], object]) -> int:
    """Start the child, wait for its end and return its exit status; what it prints is in files beside its own."""
    command = [sys.executable, "-m", "simgpu.device.child_process", str(file)]
    with (
        file.with_suffix(".out").open("wb") as out,
        file.with_suffix(".err").open("wb") as err,
        subprocess.Popen(command, env=os.environ | HIDDEN, stdin=subprocess.DEVNULL, stdout=out, stderr=err) as process,
    ):
        try:
            wait(process)
        except BaseException:
            process.kill()
            raise
    return process.returncode


def _text(file: Path) -> str:
    """Return what a process printed into a file."""
    return file.read_bytes().decode("utf-8", errors="replace").replace("\r\n", "\n")


@contextlib.contextmanager
def without_face() -> Generator[None]:
    """Start processes without CUDA's face in the block; they may use simulated GPUs without it."""
    before = os.environ.get("SIMGPU_CUDA")
    if before is not None:
        os.environ["SIMGPU_CUDA"] = ""
    try:
        yield
    finally:
        if before is not None:
            os.environ["SIMGPU_CUDA"] = before


def sources(fn: Any) -> dict[str, list[str]]:
    """Return the lines of the file or cell that holds `fn`, and those of other cells whose functions it calls.

    They are for the messages of the child, which has the files of modules itself.
    """
    lines: dict[str, list[str]] = {}
    waiting, seen = [fn], set()
    while waiting:
        function = waiting.pop()
        try:
            file = inspect.getsourcefile(function) or inspect.getfile(function)
        except TypeError:
            continue
        lines[file] = linecache.getlines(file)
        seen.add(function)
        known = getattr(function, "__globals__", {})
        called = (known.get(name) for name in _names_in(getattr(function, "__code__", None)))
        waiting += [f for f in called if inspect.isfunction(f) and f.__module__ == "__main__" and f not in seen]
    return lines


def _names_in(code: CodeType | None) -> list[str]:
    """Return the names that a function looks up, those of the functions inside it included."""
    if code is None:
        return []
    return [*code.co_names, *(name for one in code.co_consts if isinstance(one, CodeType) for name in _names_in(one))]


def remember_sources(sources: dict[str, list[str]]) -> None:
    """Load the source lines that `sources` returned in another process, for the messages of this one."""
    for source, lines in sources.items():
        linecache.cache[source] = (sum(map(len, lines)), None, lines, source)


def main(file: Path) -> None:
    """Call what is in `file` and replace it by what came of it: "value", "unavailable" or "raised", and what."""
    from simgpu.device.enabling import ready
    from simgpu.ground import by_value

    hide_accelerators()
    sys.path[:], sources, call, gpus = pickle.loads(file.read_bytes())
    device, reason = ready(gpus)
    result = ("unavailable", reason)
    if device is not None:
        remember_sources(sources)
        try:
            fn, args = pickle.loads(call)
            result = ("value", by_value.dumps(fn(*args)))
        except Exception:
            result = ("raised", traceback.format_exc())
    file.write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
