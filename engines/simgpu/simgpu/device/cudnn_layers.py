"""What does a recurrent layer refuse on CUDA? Tensors on two devices, and gradients that cuDNN has no way to compute.

These are those of a layer that ran in evaluation mode, and gradients of gradients. The CPU has them, and so have
PyTorch's own kernels, which run where cuDNN is switched off. Sources: `check_attributes` in ATen's RNN.cpp,
`_cudnn_rnn_backward_input` in cudnn/RNN.cpp, `_cudnn_rnn_backward` in derivatives.yaml, `kCudnnDoubleBackwardMsg` in
FunctionsManual.cpp, and for the layers that are cuDNN's `cudnn_is_acceptable` in Cudnn.cpp.
"""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch

from simgpu.device.tensor import SimTensor
from simgpu.ground import device_kind
from simgpu.ground.autocast import operator_of
from simgpu.ground.torch_internals import TORCH

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
    if isinstance(x, SimTensor) and _is_of_cudnn(x):
        inputs = [one for one in (x, *_listed(args[hidden]), *args[parameters]) if one.requires_grad]
        refuse = partial(_refuse_second, list(map(weakref.ref, inputs))) if args[train] else _refuse
        for result in results:
            if result.requires_grad:
                result.register_hook(refuse)
    return results


def _compare_devices(x: torch.Tensor, name: str, tensors: Any) -> None:
    """Raise where one of the hidden states or parameters is on another device than the input; C++ says meta for it."""
    for tensor in _listed(tensors):
        if tensor.device != x.device:
            found = f"found input tensor at {x.device} and {name} tensor at {tensor.device}"
            raise RuntimeError(f"Input and {name} tensors are not at the same device, {found}")


def _listed(tensors: Any) -> Sequence[torch.Tensor]:
    return tensors if isinstance(tensors, list | tuple) else (tensors,)


def _is_of_cudnn(x: torch.Tensor) -> bool:
    usual = torch.backends.cudnn.enabled and x.dtype in _FORMATS and x.numel() > 0
    return usual and device_kind.kind == "cuda"


def _refuse(gradient: torch.Tensor) -> NoReturn:
    raise RuntimeError("cudnn RNN backward can only be called in training mode")


def _refuse_second(inputs: "Sequence[weakref.ref[torch.Tensor]]", gradient: torch.Tensor) -> torch.Tensor | None:
    """Where a program wants to go backward through the backward pass, let that raise, whichever input it goes to."""
    alive = [tensor for tensor in (known() for known in inputs) if tensor is not None]
    return _Once.apply(gradient, *alive) if torch.is_grad_enabled() else None


class _Once(TORCH.autograd.Function):
    """A gradient that has no gradients of its own with respect to the inputs of a layer."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> NoReturn:
        raise NotImplementedError(
            "the derivative for '_cudnn_rnn_backward' is not implemented. Double backwards is not supported for CuDNN "
            "RNNs due to limitations in the CuDNN API. To run double backwards, please disable the CuDNN backend "
            "temporarily while running the forward pass of your RNN. For example: \nwith "
            "torch.backends.cudnn.flags(enabled=False):\n    output = model(inputs)"
        )
