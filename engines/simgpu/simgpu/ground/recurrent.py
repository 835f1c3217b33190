"""Recurrent layers and cells as CUDA runs them: by cuDNN where it takes them, else by fused cells, else step by step.

Source: `use_cudnn` and `use_gpu_fused_rnn_kernel` in ATen's RNN.cpp.
"""

from collections.abc import Sequence
from typing import Any

import torch

from simgpu.ground import cudnn_rnn, fused_cells
from simgpu.ground.autocast import operator_of

_CELLS = {"lstm": fused_cells.lstm_cell, "gru": fused_cells.gru_cell}
NAMES = (
    *(f"{layer}.{of}" for layer in cudnn_rnn.LAYERS for of in ("input", "data")),
    *(f"{name}_cell" for name in _CELLS),
    "rms_norm",
)


def register(library: torch.library.Library) -> None:
    """Register the operators that PyTorch has for CUDA alone for CPU tensors."""
    cudnn_rnn.register(library)
    fused_cells.register(library)


def run(name: str, args: Sequence[Any], capability: tuple[int, int] | None = None) -> Any:
    """Run the operator `name` of `NAMES` as on a GPU of this compute capability."""
    layer, _, overload = name.partition(".")
    if name == "rms_norm":
        whole = fused_cells.takes_rms_norm(*args)
        return torch.ops.aten._fused_rms_norm(*args, *(None,) * (4 - len(args)))[0] if whole else composite(name, args)
    if layer.endswith("_cell"):
        return _CELLS[layer.removesuffix("_cell")](*args)
    x, hidden = args[0], args[2 if overload == "data" else 1]
    if cudnn_rnn.accepts(x, capability):
        return cudnn_rnn.layer(layer, overload == "data", args)
    projected = layer == "lstm" and hidden[0].size(2) != hidden[1].size(2)
    if layer in _CELLS and overload == "input" and x.numel() and not projected:
        return fused_cells.layer(_CELLS[layer], *args)
    return composite(name, args)


def composite(name: str, args: Sequence[Any]) -> Any:
    """Run PyTorch's own composite of the operator."""
    return operator_of(name)._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)
