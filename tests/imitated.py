"""Machines unlike this one, imitated: texts for a `sitecustomize`, which Python runs at its start."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["BROWSER", "MAC", "THREE_GPUS", "WITHOUT_RANKS", "start"]

MAC = """import torch
torch._C._mps_is_available = lambda: True
torch.mps.is_available = lambda: torch.backends.mps.is_available()
"""
THREE_GPUS = """import torch
torch.version.cuda = "13.0"
torch._C._cuda_getDeviceCount = lambda: 3
torch.cuda._cached_device_count = 3
"""
_HOOK = """import importlib.abc, importlib.util, sys

class Hook(importlib.abc.MetaPathFinder):
    def __init__(self, name, after):
        self.name, self.after = name, after
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), self.after(module))
        return spec

"""
# As USE_DISTRIBUTED=0 builds it: AMD's for Windows, some for boards. C++ then asks no tensor whether it is a DTensor
# (`is_dtensor` in torch/csrc/autograd/python_variable.cpp); here it does, and finds a class.
WITHOUT_RANKS = f"""{_HOOK}
import types

def forget(module):
    for name in ("_c10d_init", "_rpc_init"):
        delattr(module, name)

Hook("torch._C", forget)
Hook("torch", lambda module: setattr(module.ops, "symm_mem", types.SimpleNamespace()))  # C++ has none then
tensor = sys.modules["torch.distributed.tensor"] = types.ModuleType("torch.distributed.tensor")
tensor.DTensor = type("DTensor", (), {{"__torch_dispatch__": classmethod(lambda *_: 0)}})
"""
# As Pyodide is; PyTorch itself imports multiprocessing, so that goes once PyTorch is there.
BROWSER = f"""{WITHOUT_RANKS}
import _thread, subprocess, threading

def refuse(*args, **kwargs):
    raise RuntimeError("can't start new thread")

def refuse_process(*args, **kwargs):
    raise OSError(138, "emscripten does not support processes.")

threading.Thread.start = _thread.start_new_thread = threading._start_new_thread = refuse
subprocess.Popen.__init__ = refuse_process
sys.modules.update(psutil=None, resource=None)

def forget_processes(module):
    for name in list(sys.modules):
        if name.partition(".")[0] in ("multiprocessing", "_multiprocessing"):
            sys.modules[name] = None

Hook("torch", forget_processes)
"""


def start(folder: Path, machine: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `python *command` on an imitated machine, in the folder, and return how it ended."""
    (folder / "machine").mkdir(exist_ok=True)
    (folder / "machine" / "sitecustomize.py").write_text(machine, encoding="utf-8")
    path = os.pathsep.join([str(folder / "machine"), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, encoding="utf-8", timeout=900
    )
