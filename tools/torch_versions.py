"""Tests of the course on the oldest supported and the newest torch, each in its own environment."""

import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["main", "newest", "oldest"]

ROOT = Path(__file__).resolve().parents[1]


def oldest() -> str:
    """Return the floor that pyproject.toml states for torch, as a full version."""
    (floor,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return floor + ".0" * (2 - floor.count("."))


def newest() -> str:
    """Return the newest version of torch that pip can install here."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True, check=True
    )
    return re.findall(r"torch \(([^)]+)\)", listed.stdout)[0]


def main() -> int:
    """Make or update .venv-torch-<version> for both, run the tests in each, and return the first exit status not 0."""
    status = 0
    for torch in (oldest(), newest()):
        venv = ROOT / f".venv-torch-{torch}"
        print(f"torch {torch}", flush=True)
        setup = subprocess.run(
            [sys.executable, "tools/environment.py", "--venv", str(venv), "--torch", torch], cwd=ROOT
        )
        if setup.returncode:
            return setup.returncode
        python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        tests = "pytest", "--nbval", "-n", "2", "notebooks", "tests"
        for words in (("tools.torch_contract",), tests):  # names that are gone are a list, and not its tracebacks
            done = subprocess.run([python, "-m", *words], cwd=ROOT, env={**os.environ, "COURSE_DEVICE": "sim"})
            status = status or done.returncode
            if done.returncode:
                break
    return status


if __name__ == "__main__":
    sys.exit(main())
