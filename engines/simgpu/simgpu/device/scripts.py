"""Errors of operators inside TorchScript, whose interpreter drops the words of Python.

It asks an exception of Python for its words before C++ has fetched them, and finds none (`handleError` in
interpreter.cpp, `python_error` in Exceptions.h). `operators.dispatch` keeps them.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from simgpu.device import state
from simgpu.ground.replacements import Replacements

_NO_CUDA = (  # as builds without and with CUDA say it
    "Cannot initialize CUDA without ATen_cuda library", "PyTorch is not linked with support for cuda devices",
    "Found no NVIDIA driver on your system",
)  # fmt: skip
_MOVE = "on a simulated GPU a TorchScript program cannot move tensors to `cuda`: move them before you call it"


def replace(put: Replacements) -> None:
    """Patch scripted and traced functions to end with the words of the failing operator."""
    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        put.put(kind, __call__=_in_full(kind.__call__))


def _in_full(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        except RuntimeError as error:
            told = str(error).rstrip()
            if any(words in told for words in _NO_CUDA):
                error.args = (f"{told.rpartition('RuntimeError: ')[0]}RuntimeError: {_MOVE}\n",)
            elif told.endswith("Error:"):
                error.args = (f"{told} {state.last_error}\n",)
            raise

    return called
