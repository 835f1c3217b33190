"""Refusals of single operators that PyTorch's table of operators does not show: of MPS, and of all in a convolution.

Sources: AdaptivePooling.mm, Convolution.mm, GridSampler.mm, Indexing.mm, Linear.mm, LinearAlgebra.mm and
OperationUtils.mm of aten/src/ATen/native/mps/operations, Convolution.cpp and SpectralOps.cpp of aten/src/ATen/native,
and PyTorch's list of what its own tests expect to fail there, torch/testing/_internal/common_mps.py.
"""

import re
from collections.abc import Callable
from typing import Any

import torch

from simgpu.device.tensor import SimTensor
from simgpu.ground import device_kind
from simgpu.ground.calls import Call
from simgpu.ground.torch_internals import Args, Kwargs, Operator

aten = torch.ops.aten
PLACEHOLDER = "Placeholder storage has not been allocated on MPS device!"
CAST_TO_DOUBLE = (
    "Cannot convert a float64 Tensor to MPS as the MPS framework doesn't support float64. Please use float32 instead."
)
_DIVISIBLE = (
    "Adaptive pool MPS: {} sizes must be divisible by {} sizes. Non-divisible input sizes are not implemented on MPS "
    "device yet. For now, you can manually transfer tensor to cpu in this case. Please refer to [this issue]"
    "(https://github.com/pytorch/pytorch/issues/96056)"
)
_GREATER = (
    "Adaptive pool MPS: Input height and width must both be greater than, or equal to, or lesser than output height "
    "and width"
)
_POOLS = "_adaptive_avg_pool2d adaptive_avg_pool2d"


def check(func: Operator, args: Args, kwargs: Kwargs) -> None:
    """Raise the errors of MPS's kernels for values of arguments and for number formats."""
    name = func._overloadpacket.__name__
    if name in _CHECKS:
        _CHECKS[name](Call(func, args, kwargs))


def has_check(func: Operator) -> bool:
    """Return whether `check` looks at calls of an operator on this kind of device."""
    name = func._overloadpacket.__name__ if func.namespace == "aten" else ""
    return name in _CHECKS if device_kind.kind == "mps" else name == "convolution" and device_kind.kind != "sim"


def types_in_words(x: torch.Tensor, other: torch.Tensor, name: str = "weight") -> str:
    """Return how Convolution.cpp calls two tensors' types: `MPSFloatType`, `CUDABFloat16Type`, unlike Python."""
    types = [tensor.type() for tensor in (x, other)]
    for at, text in enumerate(types):
        kind, kept = re.fullmatch(r"torch\.(?:(\w+)\.)?(\w+)Tensor", text).groups()  # pyright: ignore[reportOptionalMemberAccess]
        if kind == "mps" or kept not in device_kind.NAMED:
            types[at] = f"{(kind or 'cpu').upper()}{kept}Type"
    return f"Input type ({types[0]}) and {name} type ({types[1]})"


def _pool(call: Call) -> None:
    (height, width), (to_height, to_width) = call["self"].shape[-2:], call["output_size"]
    if (height - to_height) * (width - to_width) < 0:
        raise RuntimeError(_GREATER)
    if height >= to_height and width >= to_width:
        if height % max(to_height, 1) or width % max(to_width, 1):
            raise RuntimeError(_DIVISIBLE.format("input", "output"))
    elif to_height % height or to_width % width:
        raise RuntimeError(_DIVISIBLE.format("output", "input"))


def _convolution(call: Call) -> None:
    x, weight = call["input"], call["weight"]
    if x.dtype != weight.dtype and x.device == weight.device:
        raise RuntimeError(f"{types_in_words(x, weight)} should be the same")
    bias = call["bias"]
    if bias is not None and x.dtype != bias.dtype and x.device == bias.device:
        raise RuntimeError(f"{types_in_words(x, bias, 'bias')} should be the same")
    if device_kind.kind != "mps":
        return
    if not x.dtype.is_floating_point and not x.dtype.is_complex:
        raise RuntimeError("Convolution is supported only for Floating types")
    if x.dim() == 5 and call["transposed"] and x.dtype in (torch.float16, torch.bfloat16):
        raise RuntimeError("ConvTranspose 3D with BF16 or FP16 types is not supported on MPS")


def _linear(call: Call) -> None:
    given = {name: call[name] for name in ("input", "weight", "bias") if call[name] is not None}
    for name, one in given.items():
        if name != "bias" and not (one.is_floating_point() or one.is_complex()):
            raise RuntimeError(f"MPS device does not support linear for non-float {name}s")
        if one.device.type == "cpu":
            raise RuntimeError(f"Tensor for argument {name} is on {one.device} but expected on mps")


def linear(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute `linear`, which MPS has as one kernel, by what it is made of. Raises RuntimeError in MPS's words."""
    if any(isinstance(one, SimTensor) for one in (*args, *kwargs.values())):
        check(aten.linear.default, args, kwargs)
    return aten.linear.default.decompose(*args, **kwargs)


def _kernel(call: Call) -> None:
    for name, argument, refused, words in _KERNELS:
        given = call[argument] if name == call.func._overloadpacket.__name__ else None
        if getattr(given, "dtype", given) in refused:
            raise RuntimeError(words)


_COMPLEX, _FACTORS = {torch.complex64}, ("linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet")
_NOT_FLOAT = {one for one in vars(torch).values() if isinstance(one, torch.dtype)} - {torch.float32}
_KERNELS = [  # operator, argument, values or formats of it that MPS's kernel refuses, and its words
    *((name, "A", _COMPLEX, "linalg.lu_factor(): MPS doesn't support complex types.") for name in _FACTORS),
    ("linalg_lu_factor_ex", "pivot", {False}, "linalg.lu_factor(): MPS doesn't allow pivot == False."),
    ("linalg_inv_ex", "A", _COMPLEX, "linalg_inv: not supported for complex types yet!"),
    ("cholesky_inverse", "self", _NOT_FLOAT, "cholesky_inverse: MPS only supports float type!"),
    ("grid_sampler_3d", "interpolation_mode", {1}, "grid_sampler_3d: Unsupported Nearest interpolation"),
    ("index_reduce", "self", {torch.int64}, "index_reduce for MPS does not support torch.long dtype"),
    ("_fft_r2c", "self", {torch.float16}, "Unsupported dtype Half"),
]
_CHECKS: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(_POOLS.split(), _pool),
    "linear": _linear,
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
    **dict.fromkeys((row[0] for row in _KERNELS), _kernel),
}
