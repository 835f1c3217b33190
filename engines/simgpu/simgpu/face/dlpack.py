"""DLPack on CUDA's face: PyTorch exchanges with itself; no other library gets the memory."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from simgpu.device.tensor import SimTensor
from simgpu.ground.replacements import Replacements


class Capsule:
    """Stands for the capsule that `to_dlpack` gives; like that one it can be taken once."""

    def __init__(self, tensor: SimTensor) -> None:
        self._tensor: SimTensor | None = tensor

    def take(self) -> torch.Tensor:
        """Return the tensor. Raises RuntimeError the second time, in PyTorch's words."""
        tensor, self._tensor = self._tensor, None
        if tensor is None:
            raise RuntimeError(
                "from_dlpack received an invalid capsule. Note that DLTensor capsules can be consumed only once, so "
                "you might have already constructed a tensor from it once."
            )
        return tensor


def replace(put: Replacements) -> None:
    """Patch `to_dlpack` and `from_dlpack` to share the memory of a tensor on the GPU."""
    dlpack = torch.utils.dlpack  # pyright: ignore[reportAttributeAccessIssue]
    take, give = _taking(dlpack.from_dlpack), _giving(dlpack.to_dlpack)
    put.put(dlpack, from_dlpack=take, to_dlpack=give)
    put.put(torch, from_dlpack=take)


def _shared(tensor: SimTensor) -> SimTensor:
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    return tensor.detach()  # pyright: ignore[reportReturnType]


def _giving(plain: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    @functools.wraps(plain)
    def to_dlpack(tensor: torch.Tensor) -> Any:
        return Capsule(_shared(tensor)) if isinstance(tensor, SimTensor) else plain(tensor)

    return to_dlpack


def _taking(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(plain)
    def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> torch.Tensor:
        if isinstance(ext_tensor, Capsule):
            return ext_tensor.take()
        if not isinstance(ext_tensor, SimTensor):
            options = {"device": device, "copy": copy}
            return plain(ext_tensor, **{name: value for name, value in options.items() if value is not None})
        shared = _shared(ext_tensor)
        if device is not None and torch.device(device) != shared.device and copy is False:
            raise ValueError(f"cannot move DLPack tensor from device {shared.device} to {device} without copying")
        return shared.to(device or shared.device, copy=bool(copy))

    return from_dlpack
