"""Refusals of single operators on MPS that PyTorch's table of operators does not show.

Sources: AdaptivePooling.mm, Convolution.mm, Linear.mm and OperationUtils.mm of aten/src/ATen/native/mps/operations, and
PyTorch's list of what its own tests expect to fail there, torch/testing/_internal/common_mps.py.
"""

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
_POOLS = "_adaptive_avg_pool2d adaptive_avg_pool2d"


def check(func: Operator, args: Args, kwargs: Kwargs) -> None:
    """Raise the errors of MPS's kernels for values of arguments and for number formats."""
    name = func._overloadpacket.__name__
    if name in _CHECKS:
        _CHECKS[name](Call(func, args, kwargs))


def has_check(func: Operator) -> bool:
    """Return whether `check` looks at calls of an operator on this kind of device."""
    return device_kind.kind == "mps" and func.namespace == "aten" and func._overloadpacket.__name__ in _CHECKS


def _pool(call: Call) -> None:
    (height, width), (to_height, to_width) = call["self"].shape[-2:], call["output_size"]
    if (height >= to_height) != (width >= to_width) and height != to_height and width != to_width:
        raise RuntimeError(
            "Adaptive pool MPS: Input height and width must both be greater than, or equal to, or lesser than output "
            "height and width"
        )
    if height >= to_height and width >= to_width:
        if height % max(to_height, 1) or width % max(to_width, 1):
            raise RuntimeError(_DIVISIBLE.format("input", "output"))
    elif to_height % height or to_width % width:
        raise RuntimeError(_DIVISIBLE.format("output", "input"))


def _convolution(call: Call) -> None:
    if not call["input"].dtype.is_floating_point and not call["input"].dtype.is_complex:
        raise RuntimeError("Convolution is supported only for Floating types")


def _linear(call: Call) -> None:
    for name in ("input", "weight", "bias"):
        one = call[name]
        if one is None:
            continue
        if name != "bias" and not (one.is_floating_point() or one.is_complex()):
            raise RuntimeError(f"MPS device does not support linear for non-float {name}s")
        if one.device.type == "cpu":
            raise RuntimeError(f"Tensor for argument {name} is on {one.device} but expected on mps")


def linear(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute `linear`, which MPS has as one kernel, by what it is made of. Raises RuntimeError in MPS's words."""
    if any(isinstance(one, SimTensor) for one in (*args, *kwargs.values())):
        check(aten.linear.default, args, kwargs)
    return aten.linear.default.decompose(*args, **kwargs)


_CHECKS: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(_POOLS.split(), _pool),
    "linear": _linear,
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
}
