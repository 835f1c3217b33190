"""How does PyTorch make fake tensors of a GPU, as torch.compile does to find a graph, where C++ has no such device?

For Python they are on the GPU. C++ code asks a device guard, which a process without CUDA has not, and would end the
process: it is told `meta` with the GPU's index, as of the tensors of the simulated GPU. What it then makes on that
device is a fake tensor of the GPU again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import fake_tensor

from simgpu.ground import device_kind
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH, Args, Kwargs, Operator

_DEVICE = torch.ops.prim.device.default
_modes: Any = fake_tensor.FakeTensorMode


def replace(put: Replacements, kind: Callable[[], str] = lambda: device_kind.kind) -> None:
    """Let fake tensors be on simulated GPUs, or on CUDA's; `kind()` is the type of device that C++ means by `meta`."""
    put.put(_modes, avoid_device_init=True, dispatch=_led_back(_modes.dispatch, kind))
    put.put(
        fake_tensor.FakeTensor,
        __torch_dispatch__=classmethod(_answering(fake_tensor.FakeTensor)),
        is_cuda=property(lambda self: self.fake_device.type == "cuda"),
        is_meta=property(lambda self: self.fake_device.type == "meta"),
    )
    put.put_item(fake_tensor._DISPATCH_META_HANDLERS, _DEVICE, _device_for_cpp)


def are_made() -> bool:
    """Return whether operators make fake tensors now."""
    return TORCH._C._get_dispatch_mode(TORCH._C._TorchDispatchModeKey.FAKE) is not None


def _device_for_cpp(args: Args) -> torch.device:
    """Return where a fake tensor is, for C++ code."""
    device, mode = args[0].fake_device, args[0].fake_mode
    if mode.in_kernel_invocation:
        return torch.device("meta")
    return torch.device("meta", device.index or 0) if device.type in ("cuda", "sim") else device


def _answering(owner: Any) -> Callable[..., Any]:
    plain = owner.__torch_dispatch__.__func__

    def __torch_dispatch__(
        cls: type[torch.Tensor], func: Operator, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        return _device_for_cpp(args) if func is _DEVICE else plain(cls, func, types, args, kwargs or {})

    return __torch_dispatch__


def _led_back(plain: Callable[..., Any], kind: Callable[[], str]) -> Callable[..., Any]:
    def lead(value: Any) -> Any:
        is_gpu = type(value) is torch.device and value.type == "meta" and value.index is not None
        return torch.device(kind(), value.index) if is_gpu else value

    def dispatch(self: Any, func: Operator, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        args, kwargs = tuple(map(lead, args)), dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = lead(kwargs["device"])
        return plain(self, func, types, args, kwargs)

    return dispatch
