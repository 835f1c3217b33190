"""`nvidia-smi` for programs that start it: one that comes first on PATH.

`start/bin/nvidia-smi` prints what a variable of its environment says, which is written anew whenever a process starts.
On Windows, where a program must be a binary, there is none.
"""

import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simgpu.device import state
from simgpu.face import nvml, properties
from simgpu.ground.replacements import Replacements

VARIABLE = "SIMGPU_SMI"


def replace(put: Replacements) -> None:
    """Put `nvidia-smi` on the PATH of child processes."""
    if os.name != "posix":
        return
    folder = str(Path(__file__).parent / "start" / "bin")
    before = os.environ.get("PATH", "").split(os.pathsep)
    put.put_item(os.environ, "PATH", os.pathsep.join([folder, *(one for one in before if one != folder)]))
    put.put_item(os.environ, VARIABLE, _facts())
    put.put(subprocess.Popen, __init__=_telling(subprocess.Popen.__init__))
    put.put(os, system=_telling(os.system))  # pyright: ignore[reportDeprecated]  # which programs call all the same


def _facts() -> str:
    """Return the fields that `nvidia-smi` answers for each GPU, sizes in MiB."""
    spec, rows = state.world.clock.machine.gpu, []
    for index in range(len(state.world.memory.gpus)):
        handle, known = nvml.nvmlDeviceGetHandleByIndex(index), properties.of(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        sizes = {name: round(getattr(memory, name) / 2**20) for name in ("total", "used", "free")}
        capability = f"{known.major}.{known.minor}"
        rows.append({"name": known.name, "uuid": nvml.nvmlDeviceGetUUID(handle), "compute_cap": capability, **sizes})
        rows[-1] |= {"power_limit": spec.power_w, "pid": os.getpid(), "driver": nvml.nvmlSystemGetDriverVersion()}
    return json.dumps(rows)


def _telling(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return `plain`, which starts a process, with the facts as they are now in its environment."""

    @functools.wraps(plain)
    def told(*args: Any, **kwargs: Any) -> Any:
        if not state.forked:
            os.environ[VARIABLE] = _facts()
        return plain(*args, **kwargs)

    return told
