"""Starts the program that lesson 05 kills, and follows the lines that it prints."""

import subprocess
import sys
from pathlib import Path

from course_utils import programs

_OPTIONS = ("--steps", "40", "--every", "5", "--batch", "8", "--length", "96")


def start(checkpoint: Path, *options: str) -> subprocess.Popen:
    """Start `programs/train_photos.py` for 40 steps with this checkpoint, and return its process."""
    command = [sys.executable, programs.path("train_photos.py"), "--checkpoint", checkpoint, *_OPTIONS, *options]
    words = [str(word) for word in command]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8")


def follow(process: subprocess.Popen, losses: dict[int, float], until: str = "", *, exact: bool = True) -> None:
    """Note the loss of each step that the program prints, up to a line that begins with `until`, or to its end.

    Raises AssertionError with the program's lines where it ends in another way, and, if `exact`, where a step that is
    done again has another loss than before.
    """
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step"):
            _, step, _, loss = line.split()
            before = losses.setdefault(int(step), float(loss))
            assert before == float(loss) or not exact, f"step {step} had the loss {before}, and now {loss}"
        if until and line.startswith(until):
            return
    assert process.wait() == 0, "".join(lines)
    assert not until, f"the program ended without a line {until!r}: {''.join(lines)}"
