"""What does a recurrent layer refuse on CUDA? Tensors on two devices, and a backward pass after evaluation mode.

The second is cuDNN's rule. The CPU has none, nor have PyTorch's own kernels, which run where cuDNN is switched off.
Sources: `check_attributes` in ATen's RNN.cpp, `_cudnn_rnn_backward_input` in cudnn/RNN.cpp, and for the layers that are
cuDNN's `cudnn_is_acceptable` in Cudnn.cpp.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch

from simgpu.device.tensor import SimTensor
from simgpu.ground import device_kind
from simgpu.ground.autocast import operator_of

_LAYERS = [f"{layer}.{of}" for layer in ("lstm", "gru", "rnn_tanh", "rnn_relu") for of in ("input", "data")]
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_FORMATS = (torch.float16, torch.float32, torch.float64)


def register(library: torch.library.Library, lstm: Callable[..., Any]) -> None:
    """Let recurrent layers keep cuDNN's rule; `lstm` computes that of a batch that is not packed."""
    for name in _LAYERS:
        operator = operator_of(name)
        run = lstm if name == "lstm.input" else partial(operator._op_dk, _COMPOSITE)
        places = [argument.name for argument in operator._schema.arguments]
        library.impl(name, partial(_layer, run, *map(places.index, ("hx", "params", "train"))), "AutogradMeta")


def _layer(run: Callable[..., Any], hidden: int, parameters: int, train: int, *args: Any) -> Any:
    x = args[0]
    _compare_devices(x, "hidden", args[hidden])
    _compare_devices(x, "parameter", args[parameters])
    results = run(*args)
    if not args[train] and isinstance(x, SimTensor) and _is_of_cudnn(x):
        for result in results:
            if result.requires_grad:
                result.register_hook(_refuse)
    return results


def _compare_devices(x: torch.Tensor, name: str, tensors: Any) -> None:
    """Raise where one of the hidden states or parameters is on another device than the input; C++ says meta for it."""
    for tensor in tensors if isinstance(tensors, list | tuple) else (tensors,):
        if tensor.device != x.device:
            found = f"found input tensor at {x.device} and {name} tensor at {tensor.device}"
            raise RuntimeError(f"Input and {name} tensors are not at the same device, {found}")


def _is_of_cudnn(x: torch.Tensor) -> bool:
    usual = torch.backends.cudnn.enabled and x.dtype in _FORMATS and x.numel() > 0
    return usual and device_kind.kind == "cuda"


def _refuse(gradient: torch.Tensor) -> NoReturn:
    raise RuntimeError("cudnn RNN backward can only be called in training mode")
