"""Faces of child processes, handed on by two environment variables.

Python runs `start/sitecustomize.py` at its start, and that switches the face on as soon as the child imports torch. A
child that was forked has it from its parent, and cannot use a GPU where the parent has used one, as on CUDA.
"""

import json
import os
from pathlib import Path

from simgpu.ground.replacements import Replacements

VARIABLE = "SIMGPU_CUDA"


def replace(put: Replacements, kind: str, arguments: dict[str, object]) -> None:
    """Make child processes call `simgpu.cuda(**arguments)`, or `kind` in place of `cuda`, at their start."""
    here = Path(__file__).parent
    folders = [str(here / "start"), str(here.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    put.put_item(os.environ, "PYTHONPATH", os.pathsep.join(folders))
    put.put_item(os.environ, VARIABLE, json.dumps([kind, arguments]))
    put.put_item(os.environ, "RANKLAUNCH_METHOD", "spawn")  # a rank that `ranklaunch` forks could not use CUDA
