"""How is it said what went wrong in ranks: the first failure with the reader's line, or where each rank waited?"""

from __future__ import annotations

import functools
import html
import linecache
import os
import signal
import site
import sysconfig
from pathlib import Path
from typing import Any

import torch

from course_utils._launch_wire import Failure, Frame

__all__ = ["RankError", "communicates", "died", "place", "raised", "waiting"]

_SHOWN = 8  # frames of the reader in a message


class RankError(RuntimeError):
    """Ranks that failed. Notebooks show the message alone, without the traceback of this process.

    - `rank`: the first rank that failed; of a hang, the first that did not wait for others, if there is one;
    - `kind`: "raised", "died", "hang", "start" or "result";
    - `error`: the name of the type of the error that was raised, else an empty text;
    - `states`: what each rank was doing, in words.
    """

    def __init__(self, message: str, rank: int, kind: str, error: str = "", states: Any = None) -> None:
        super().__init__(message, rank, kind, error, states)
        self.message, self.rank, self.kind, self.error = message, rank, kind, error
        self.states: dict[int, str] = states or {}

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        return [f"RankError: {self.message}"]

    def _repr_html_(self) -> str:
        return f"<pre>RankError: {html.escape(self.message)}</pre>"


RankError.__module__ = "course_utils.launch"


def raised(failure: Failure) -> str:
    """Return the error with the reader's lines, innermost last, and what it was caused by."""
    parts = []
    if failure.cause is not None:
        parts += [raised(failure.cause), "which led to:"]
    frames = _own(failure.frames)
    shown = [frame for frame in frames if _readers(frame)] or frames
    parts += [f"  {place(frame)}" for frame in shown[-_SHOWN:]]
    inner = frames[-1] if frames else None
    if inner is not None and inner not in shown:
        parts.append(f"  raised in {inner.function} ({Path(inner.file).name})")
    return "\n".join([*parts, failure.words])


def waiting(frames: tuple[Frame, ...]) -> str:
    """Return where a rank was: the reader's innermost line first, then the function it had called, then the callers."""
    frames = _own(frames)
    places = [at for at, frame in enumerate(frames) if _readers(frame)]
    if not places:
        return f"in {frames[-1].function} ({Path(frames[-1].file).name})" if frames else "outside Python"
    last = places[-1]
    called = next((frame for frame in frames[last + 1 :] if frame.function not in ("wrapper", "inner")), None)
    where = f"in {called.function}, called at " if called else "at "
    callers = [f"    called from {place(frames[at], code=False)}" for at in reversed(places[:-1])]
    return "\n".join([where + place(frames[last]), *callers[: _SHOWN - 1]])


def communicates(frames: tuple[Frame, ...]) -> bool:
    """Return whether a stack ends inside torch.distributed, so that the rank waits for others."""
    root = os.path.join(_torch(), "distributed")
    own = _own(frames)
    last = max((at for at, frame in enumerate(own) if _readers(frame)), default=-1)
    return any(os.path.abspath(frame.file).startswith(root) for frame in own[last + 1 :])


def died(code: int | None) -> str:
    """Return how a process ended that did not say so itself: by a signal or by leaving."""
    if code is None:
        return "ended with the process that starts the ranks"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        more = "; the system sends it when memory runs out" if name == "SIGKILL" else ""
        return f"was killed by {name}{more}"
    shown = hex(code) if code > 255 else str(code)
    return f"ended the process with exit code {shown} before the function returned"


def place(frame: Frame, *, code: bool = True) -> str:
    """Return a line of a stack in words, with its source; a file of a notebook's cell is called "cell"."""
    source = linecache.getline(frame.file, frame.line).strip() if code else ""
    words = f"{_file(frame.file)}, line {frame.line}, in {frame.function}"
    return f"{words}\n    {source}" if source else words


def _file(name: str) -> str:
    path = Path(name)
    if name.startswith("<ipython-input") or path.parent.name.startswith("ipykernel_"):
        return "cell"
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return name


def _own(frames: tuple[Frame, ...]) -> list[Frame]:
    """Return the frames without those of the launch itself."""
    return [frame for frame in frames if not Path(frame.file).name.startswith("_launch_") and not _threading(frame)]


def _threading(frame: Frame) -> bool:
    return frame.file.startswith("<frozen") or frame.file == "<string>"


def _readers(frame: Frame) -> bool:
    name = frame.file
    if name.startswith("<ipython-input") or Path(name).parent.name.startswith("ipykernel_"):
        return True
    return not os.path.abspath(name).startswith(_libraries())


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of code that is not the reader's: Python's own, installed packages, this package."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages(), str(Path(_torch()).parent)]
    own = Path(__file__).parent
    return tuple(path + os.sep for path in paths if path) + tuple(
        str(file) for file in own.glob("*.py") if not file.name.startswith("lesson")
    )


def _torch() -> str:
    return os.path.dirname(os.path.abspath(torch.__file__))
