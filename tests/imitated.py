"""Machines unlike this one, imitated: texts for a `sitecustomize`, which Python runs at its start."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

__all__ = ["BROWSER", "MAC", "THREE_GPUS", "WITHOUT_RANKS", "start"]

_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MAC, THREE_GPUS = _TEXTS["mac"], _TEXTS["three_gpus"]
WITHOUT_RANKS = _TEXTS["hook"] + _TEXTS["without_ranks"]
BROWSER = WITHOUT_RANKS + _TEXTS["browser"]


def start(folder: Path, machine: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `python *command` on an imitated machine, in the folder, and return how it ended."""
    (folder / "machine").mkdir(exist_ok=True)
    (folder / "machine" / "sitecustomize.py").write_text(machine, encoding="utf-8")
    path = os.pathsep.join([str(folder / "machine"), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, encoding="utf-8", timeout=900
    )
