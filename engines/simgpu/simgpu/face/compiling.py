"""Compiled functions on a face: what PyTorch compiled with it, and without it, kept apart."""

import sys

import torch

from simgpu.device import compiling
from simgpu.ground.replacements import Replacements


def replace(put: Replacements) -> None:
    """Register the functions that CUDA's face replaces with `torch.compile`."""
    for name in ("torch._C._dynamo.utils", "torch._dynamo.utils", "torch._dynamo.guards"):
        if hasattr(sys.modules.get(name), "get_current_stream"):  # since PyTorch 2.15: what is compiled asks for it
            ask = torch.compiler.disable(lambda device: torch.accelerator.current_stream())  # traced, it asks itself
            put.put(sys.modules[name], get_current_stream=ask)
    compiling.forget_functions()
    put.call(compiling.forget_functions)
