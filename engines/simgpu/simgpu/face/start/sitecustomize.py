"""First code of a child process of a program with a face; Python imports it at its start.

Nothing, unless the child imports torch: then it switches the face on, with the arguments in SIMGPU_CUDA. The next
`sitecustomize` on the path, which this one hides, runs too.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


class _AfterTorch:
    """Finds torch and simgpu as Python would, and switches the face on once torch is imported.

    Where the child begins with simgpu, which imports torch, that is once simgpu is imported too.
    """

    def __init__(self) -> None:
        self._asks = False  # whether the spec is asked for here, of the other finders
        self._is_on = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in ("torch", "simgpu") or self._asks or self._is_on or not os.environ.get("SIMGPU_CUDA"):
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks = False
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._switch_on(name)

            spec.loader.exec_module = exec_module
        return spec

    def _switch_on(self, imported: str) -> None:
        begun = "simgpu" if imported == "torch" else "torch"
        if self._is_on or getattr(getattr(sys.modules.get(begun), "__spec__", None), "_initializing", False):
            return
        if "torch" not in sys.modules:
            return
        self._is_on = True
        import simgpu

        simgpu.hide_accelerators(children=False)  # as the process did that started this one
        kind, arguments = json.loads(os.environ["SIMGPU_CUDA"])
        getattr(simgpu, kind)(**arguments)
        if os.environ.get("SIMGPU_REPORT"):
            from simgpu.reports.command import start_in_rank

            start_in_rank()


def _run_the_next() -> None:
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, _AfterTorch())
_run_the_next()
