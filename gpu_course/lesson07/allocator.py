"""Trials of PyTorch's caching allocator, on CUDA or the simulated GPU."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

import simgpu

__all__ = ["limit_memory"]


@contextmanager
def limit_memory(kind: str, mib: int, settings: str = "expandable_segments:False") -> Iterator[ModuleType]:
    """Let PyTorch reserve `mib` MiB more, from an empty cache and with these settings of the allocator.

    Yields `torch.cuda` or `torch.sim`, by `kind`. Afterwards the limit, the settings and the simulated GPU's allocator
    are as they were.
    """
    module = torch.get_device_module(kind)
    settings_before = _settings()
    simulated_before = simgpu.settings() if kind == "sim" else None
    fraction_before = 1.0 if kind == "sim" else module.get_per_process_memory_fraction()
    if kind == "sim":
        simgpu.configure(allocator="caching")
    torch._C._accelerator_setAllocatorSettings(settings)
    gc.collect()
    module.empty_cache()
    allowed_bytes = module.memory_reserved() + mib * 2**20 + 1
    module.set_per_process_memory_fraction(allowed_bytes / module.get_device_properties(0).total_memory)
    try:
        yield module
    finally:
        module.set_per_process_memory_fraction(fraction_before)
        torch._C._accelerator_setAllocatorSettings(settings_before)
        if simulated_before is not None:
            simgpu.restore(simulated_before)


def _settings() -> str:
    """Return the settings of the allocator as they are now, with `expandable_segments` named."""
    if hasattr(torch._C, "_accelerator_getAllocatorSettings"):
        told = torch._C._accelerator_getAllocatorSettings()
    else:  # PyTorch 2.11 does not tell: what the program was started with
        told = os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    named = told if "expandable_segments" in told else f"{told},expandable_segments:False"
    return named.strip(",")
