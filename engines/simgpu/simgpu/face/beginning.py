"""When does CUDA begin? With the first line that uses it, as on CUDA: importing torch and asking for seeds does not.

From then on `torch.cuda.is_initialized()` is True, the number of GPUs stays what it was, and a child process that is
forked cannot use them. Source: `_lazy_init` in torch/cuda/__init__.py, and `poison_fork` in torch/csrc/cuda/Module.cpp,
which already `torch.cuda.is_available()` calls, as its documentation says.
"""

import os
from collections.abc import Callable
from typing import Any

import torch

from simgpu.device import state
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH

_LOADING = "CUDA_MODULE_LOADING"  # which earlier versions of PyTorch set in the environment where CUDA begins


class Beginning:
    """Whether this program has used CUDA so far."""

    def __init__(self, put: Replacements) -> None:
        """Let CUDA be unused from now on, until something asks for it."""
        self._asked = False
        cuda: Any = torch.cuda
        put.put(cuda, _initialized=False, _queued_calls=[], _lazy_seed_tracker=type(cuda._lazy_seed_tracker)())
        for owner in (cuda, cuda.random):
            put.put(owner, _lazy_call=_at_once)
        put.put(state.world.memory, at_first=cuda._lazy_init)
        put.put(state, begun=self.forks_fail)
        put.call(_forget_loading, os.environ.get(_LOADING))

    def __bool__(self) -> bool:
        return TORCH.cuda._initialized

    def forks_fail(self) -> bool:
        """Return whether a child that is forked now could not use CUDA."""
        return bool(self) or self._asked

    def ask(self) -> None:
        """Note that the driver was asked how many GPUs there are: that is enough to make forks fail."""
        self._asked = True


def _at_once(function: Callable[[], None], **kwargs: Any) -> None:
    """Do now what CUDA puts off until it begins, which is to seed: here the generator is the CPU's, and in use."""
    begins = TORCH.cuda._tls
    if TORCH.cuda._initialized or hasattr(begins, "is_initializing"):
        return function()
    begins.is_initializing = True  # so that what is called does not begin
    try:
        return function()
    finally:
        del begins.is_initializing


def _forget_loading(before: str | None) -> None:
    if before is None:
        os.environ.pop(_LOADING, None)
