"""What does importing every module of the storeys change in the functions of others? Run in a process of its own.

python -m tests.project.snapshot --loaded    print what the storeys load besides themselves, a module a line
python -m tests.project.snapshot FILE        load those first, then compare; print the findings as JSON
"""

import builtins  # noqa: F401  # is looked at
import contextlib
import importlib
import json
import os
import pkgutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.notebooks.walls import STOREYS

LOOKED_AT = ("torch", "numpy", "builtins", "warnings")
_FUNCTIONS = (property, classmethod, staticmethod)


def import_all() -> int:
    """Import every module of the storeys but programs and a kernel of Triton; return how many."""
    names = list(STOREYS)
    for storey in STOREYS:
        package = importlib.import_module(storey)
        names += [found.name for found in pkgutil.walk_packages(package.__path__, f"{storey}.")]
    for name in names:
        if not name.endswith((".__main__", ".triton.first")):  # the kernel that tries the installed Triton
            importlib.import_module(name)
    return len(names)


def functions() -> dict[str, Any]:
    """Return all functions and classes in the modules looked at, and in the classes that are defined there, by name."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in LOOKED_AT:
            continue
        classes = {
            f"{name}.{value.__name__}": value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == name
        }
        for owner, space in {name: module, **classes}.items():
            for key, value in vars(space).items():
                if callable(value) or isinstance(value, _FUNCTIONS):
                    found[f"{owner}.{key}"] = value
    return found


def settings() -> dict[str, Any]:
    """Return what an import could set besides."""
    import torch

    return {
        "os.environ": dict(os.environ),
        "sys.excepthook": sys.excepthook,
        "sys.displayhook": sys.displayhook,
        "warnings.filters": list(warnings.filters),
        "signal.SIGINT": signal.getsignal(signal.SIGINT),
        "torch's threads": torch.get_num_threads(),
        "torch's number format": torch.get_default_dtype(),
        "torch's random state": torch.get_rng_state().tolist(),
    }


def compared(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of functions that are others, or that one of the two lacks."""
    nothing = object()
    return sorted(key for key in {**before, **after} if before.get(key, nothing) is not after.get(key, nothing))


def differences(change: Any) -> list[str]:
    """Return what `change()` changes."""
    before, set_before = functions(), settings()
    change()
    set_after = settings()
    return compared(before, functions()) + [key for key in set_before if set_before[key] != set_after[key]]


def _spoil() -> None:
    import torch

    torch.autocast.__init__ = lambda *args: None
    torch.randn, torch.new = torch.rand, torch.rand
    os.environ["X"] = "x"


if __name__ == "__main__":
    if sys.argv[1] == "--loaded":
        before = set(sys.modules)
        import_all()
        print("\n".join(name for name in sys.modules if name not in before and name.split(".")[0] not in STOREYS))
    else:
        for name in Path(sys.argv[1]).read_text(encoding="utf-8").split():
            with contextlib.suppress(ImportError):  # some names are not those of files
                importlib.import_module(name)
        found = {"functions": len(functions()), "changed": differences(import_all), "seen": differences(_spoil)}
        print(json.dumps(found))
