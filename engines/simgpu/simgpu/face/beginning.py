"""Initialisation of CUDA or XPU: the first line that uses it, not importing torch or asking for seeds.

From then on `torch.cuda.is_initialized()` is True, the number of GPUs stays what it was, and a child process that is
forked cannot use them. Source: `_lazy_init` in torch/cuda/__init__.py, and `poison_fork` in torch/csrc/cuda/Module.cpp,
which already `torch.cuda.is_available()` calls, as its documentation says; those of XPU beside them.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

from simgpu.device import state
from simgpu.ground.replacements import Replacements

_LOADING = "CUDA_MODULE_LOADING"  # which earlier versions of PyTorch set in the environment where CUDA begins


class Beginning:
    """Whether this program has used its kind of device so far; `module` is `torch.cuda` or `torch.xpu`."""

    def __init__(self, put: Replacements, module: Any) -> None:
        """Mark the device as unused until something asks for it."""
        self._asked, self._module = False, module
        put.put(module, _initialized=False, _queued_calls=[], _lazy_seed_tracker=type(module._lazy_seed_tracker)())
        for owner in (module, module.random):
            put.put(owner, _lazy_call=functools.partial(_at_once, module))
        put.put(state.world.memory, at_first=module._lazy_init)
        put.put(state, begun=self.forks_fail)
        put.call(_forget_loading, os.environ.get(_LOADING))

    def __bool__(self) -> bool:
        return self._module._initialized

    def forks_fail(self) -> bool:
        """Return whether a child that is forked now could not use it."""
        return bool(self) or self._asked

    def ask(self) -> None:
        """Note that the driver was asked how many GPUs there are: that is enough to make forks fail."""
        self._asked = True


def _at_once(module: Any, function: Callable[[], None], **kwargs: Any) -> None:
    """Run at once what a device defers to its start, seeding: here the generator is the CPU's, and in use."""
    begins = module._tls
    if module._initialized or hasattr(begins, "is_initializing"):
        return function()
    begins.is_initializing = True  # so that what is called does not begin
    try:
        return function()
    finally:
        del begins.is_initializing


def _forget_loading(before: str | None) -> None:
    if before is None:
        os.environ.pop(_LOADING, None)
