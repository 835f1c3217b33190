"""`torch.cuda.set_sync_debug_mode`: lines that make the host wait.

As on CUDA: of those that read a value, whose result has a size that depends on values, or that copy over the bus and
do not say `non_blocking=True`. `synchronize` is what a program asks for, and is not told.
"""

import torch

from simgpu.device import state
from simgpu.ground import places
from simgpu.ground.replacements import Replacements

_OFF, _WARN, _ERROR = range(3)  # as C++ numbers them
_level = _OFF


def replace(put: Replacements) -> None:
    """Patch `torch.cuda` to set and return the mode, which is off afterwards."""
    put.put(torch._C, _cuda_set_sync_debug_mode=_set, _cuda_get_sync_debug_mode=lambda: _level)
    put.call(_set, _OFF)


def _set(level: int) -> None:
    global _level
    _level = int(level)
    state.world.clock.on_host_wait = None if _level == _OFF else _tell


def _tell(reason: str) -> None:
    """Warn of a line that makes the host wait, or raise RuntimeError, as the mode says."""
    words = f"called a synchronizing CUDA operation ({reason}) in {places.place()}"
    if _level == _ERROR:
        raise RuntimeError(words)
    places.warn(words)
