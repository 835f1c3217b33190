"""Recurrent layers on a simulated GPU: one call of cuDNN where it takes them, else CUDA's fused cells step by step.

Tensors on another device than the input are refused in CUDA's words. Sources: `check_attributes`, `use_cudnn` and
`use_gpu_fused_rnn_kernel` in ATen's RNN.cpp.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from simgpu.device import state
from simgpu.device.tensor import SimTensor
from simgpu.ground import device_kind, recurrent
from simgpu.ground.autocast import operator_of


def register(library: torch.library.Library) -> None:
    """Route recurrent layers and cells through the operators of CUDA, for which the CPU gets kernels here."""
    recurrent.register(library)
    for name in recurrent.NAMES:
        places = [argument.name for argument in operator_of(name)._schema.arguments]
        compared = [places.index(one) for one in ("hx", "params")] if "params" in places else []
        library.impl(name, partial(_run, name, compared), "AutogradMeta")


def _run(name: str, places: Sequence[int], *args: Any) -> Any:
    x = args[0]
    for what, place in zip(("hidden", "parameter"), places, strict=False):
        _compare_devices(x, what, args[place])
    if isinstance(x, SimTensor) and device_kind.kind in ("cuda", "sim"):
        return recurrent.run(name, args, state.world.clock.machine.gpu.compute_capability)
    return recurrent.composite(name, args)


def _compare_devices(x: torch.Tensor, name: str, tensors: Any) -> None:
    """Raise where one of the hidden states or parameters is on another device than the input; C++ says meta for it."""
    for tensor in tensors if isinstance(tensors, list | tuple) else (tensors,):
        if tensor.device != x.device:
            found = f"found input tensor at {x.device} and {name} tensor at {tensor.device}"
            raise RuntimeError(f"Input and {name} tensors are not at the same device, {found}")
