"""How is an answer checked on the simulated GPU where this process has a real one?

In a child process that hides the real one: `python -m course_utils._simulated FILE` reads the answer from FILE and
writes what the check said into it.
"""

from __future__ import annotations

import importlib
import inspect
import linecache
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from course_utils.exercise import Exercise

__all__ = ["Unavailable", "examine_in_child"]

LIMIT_S = 180.0
_HIDDEN = {"COURSE_DEVICE": "sim", "CUDA_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "none"}


class Unavailable(RuntimeError):
    """The simulated GPU cannot be had on this machine: nothing is known about the answer."""


def examine_in_child(exercise: Exercise, answer: Any) -> None:
    """Run the check on the simulated GPU of a child process.

    Raises `WrongAnswer` if the answer is wrong, and `Unavailable` with the reason where the child cannot tell.
    """
    import cloudpickle

    from course_utils.exercise import WrongAnswer

    with tempfile.TemporaryDirectory(prefix="course-check-") as folder:
        file = Path(folder) / "answer"
        stored = (sys.path, exercise.lesson, exercise.name, _sources(answer), cloudpickle.dumps(answer))
        file.write_bytes(pickle.dumps(stored))
        command = [sys.executable, "-m", "course_utils._simulated", str(file)]
        try:
            done = subprocess.run(
                command, env={**os.environ, **_HIDDEN}, capture_output=True, text=True, encoding="utf-8",
                errors="replace", timeout=LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise WrongAnswer(exercise, f"{exercise.name} does not end: it was stopped after {LIMIT_S:g} s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise Unavailable(f"{exercise.name} could not be checked on the simulated GPU: {last}")
        message = file.read_text(encoding="utf-8")
    if message:
        raise WrongAnswer(exercise, message)


def _sources(answer: Any) -> dict[str, list[str]]:
    """Return the lines of the file or cell that holds the answer, for the messages of the child."""
    try:
        name = inspect.getfile(answer)
        found = inspect.getsourcefile(answer) or name
    except TypeError:
        return {}
    return {found: linecache.getlines(found)}


def _hide_accelerators() -> None:
    """Let no real accelerator be seen: for what no environment variable hides, such as Apple's."""
    for name in ("cuda", "xpu", "mps"):
        module = getattr(torch, name, None)
        if module is not None:
            module.is_available = lambda: False
    torch.backends.mps.is_available = lambda: False


def main(file: Path) -> None:
    """Check the answer in `file` and replace it by the message of the check, empty if the answer is right."""
    _hide_accelerators()
    from course_utils import devices
    from course_utils.exercise import WrongAnswer

    path, lesson, name, sources, answer = pickle.loads(file.read_bytes())
    sys.path[:] = path
    place = devices.simulated()
    if place is None:
        raise RuntimeError("there is no simulated GPU on this machine")
    for source, lines in sources.items():
        linecache.cache[source] = (sum(map(len, lines)), None, lines, source)
    exercise = getattr(importlib.import_module(f"course_utils.exercises.lesson{lesson}"), name)
    message = ""
    try:
        exercise.examine(pickle.loads(answer), place)
    except WrongAnswer as wrong:
        message = wrong.message
    file.write_text(message, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
