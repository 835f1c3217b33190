"""What does `torch.compile` ask of CUDA? What PyTorch compiled with the face on, and without it."""

import sys
from typing import Any

import torch

from simgpu.ground.replacements import Replacements


def replace(put: Replacements) -> None:
    """Let `torch.compile` know the functions that CUDA's face replaces."""
    for name in ("torch._C._dynamo.utils", "torch._dynamo.utils", "torch._dynamo.guards"):
        if hasattr(sys.modules.get(name), "get_current_stream"):  # since PyTorch 2.15: what is compiled asks for it
            ask = torch.compiler.disable(lambda device: torch.cuda.current_stream())  # traced, it would ask itself
            put.put(sys.modules[name], get_current_stream=ask)
    _forget_functions()
    put.call(_forget_functions)


def _forget_functions() -> None:
    """Let Dynamo look up anew which functions it may put into a graph: it remembers the functions themselves."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.clear_lru_cache()
