"""Fake tensors of a GPU, as torch.compile makes them, where C++ has no such device.

For Python they are on the GPU. C++ code asks a device guard, which a process without CUDA has not, and would end the
process: it is told `meta` with the GPU's index, as of the tensors of the simulated GPU. What it then makes on that
device is a fake tensor of the GPU again.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.ground import device_kind
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import BASE, TORCH, Args, Kwargs, Operator

_DEVICE = torch.ops.prim.device.default
_LIFTS = torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default
_modes: Any = fake_tensor.FakeTensorMode


def replace(
    put: Replacements, kind: Callable[[], str] = lambda: device_kind.kind,
    is_gpu: Callable[[torch.device], bool] = device_kind.is_ours,
) -> None:  # fmt: skip
    """Patch fake tensors to be on simulated GPUs, or on CUDA's.

    `kind()` is the type of device that C++ means by `meta`; `is_gpu` says whether a tensor that C++ made is on it.
    """
    put.put(_modes, avoid_device_init=True, dispatch=_led_back(_modes.dispatch, kind, is_gpu))
    put.put(
        fake_tensor.FakeTensor,
        __torch_dispatch__=classmethod(_answering(fake_tensor.FakeTensor)),
        **{f"is_{name}": property(functools.partial(_is_on, name)) for name in ("cuda", "mps", "xpu")},
        is_meta=property(functools.partial(_is_on, "meta")),
    )
    put.put(
        FunctionalTensor,  # a wrapper around a fake tensor, which C++ tells where it is
        device=property(lambda self: _lead(BASE.device.__get__(self), kind)),
        _extra_dispatch_keys=_Keys(FunctionalTensor._extra_dispatch_keys),
    )
    put.put_item(fake_tensor._DISPATCH_META_HANDLERS, _DEVICE, _device_for_cpp)


class _Keys:
    """The dispatch keys that a functional tensor takes over: when it is made also that of the GPU's autocast.

    Otherwise C++ gives it that key by its device. PyTorch also asks which keys to include while an operator runs, and
    there it must not be: autocast would be on.
    """

    def __init__(self, keys: Any) -> None:
        self._keys = keys

    def __get__(self, tensor: Any, owner: type) -> Any:
        if sys._getframe(1).f_code.co_name != "__new__":
            return self._keys
        key = "CUDA" if device_kind.kind == "sim" else device_kind.current.key
        return self._keys.add(getattr(torch._C.DispatchKey, f"Autocast{key}"))


def _is_on(name: str, tensor: Any) -> bool:
    return tensor.fake_device.type == name


def are_made() -> bool:
    """Return whether operators make fake tensors now."""
    return TORCH._C._get_dispatch_mode(TORCH._C._TorchDispatchModeKey.FAKE) is not None


def _device_for_cpp(args: Args) -> torch.device:
    """Return where a fake tensor is, for C++ code."""
    device, mode = args[0].fake_device, args[0].fake_mode
    if mode.in_kernel_invocation:
        return torch.device("meta")
    return torch.device("meta", device.index or 0) if device.type in ("cuda", "sim", device_kind.kind) else device


def _answering(owner: Any) -> Callable[..., Any]:
    plain = owner.__torch_dispatch__.__func__

    def __torch_dispatch__(
        cls: type[torch.Tensor], func: Operator, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        return _device_for_cpp(args) if func is _DEVICE else plain(cls, func, types, args, kwargs or {})

    return __torch_dispatch__


def _lead(value: Any, kind: Callable[[], str]) -> Any:
    """Return the GPU that C++ calls `meta`; anything else as it is."""
    is_gpu = type(value) is torch.device and value.type == "meta" and value.index is not None
    return torch.device(kind(), value.index) if is_gpu else value  # pyright: ignore[reportArgumentType]


def _faked(tensor: torch.Tensor, mode: Any, kind: Callable[[], str]) -> torch.Tensor:
    """Return a fake tensor on the GPU for one that C++ made and moved there, as since PyTorch 2.15 for `x[[0, 2]]`."""
    with _disable_current_modes(), torch.no_grad():
        like = torch.empty_strided(tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device="meta")
        return fake_tensor.FakeTensor(mode, like, torch.device(kind(), tensor.device.index or 0))


def _led_back(
    plain: Callable[..., Any], kind: Callable[[], str], is_gpu: Callable[[torch.device], bool]
) -> Callable[..., Any]:
    def dispatch(self: Any, func: Operator, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if func in _LIFTS and not isinstance(args[0], fake_tensor.FakeTensor) and is_gpu(args[0].device):
            return _faked(args[0], self, kind)
        args, kwargs = tuple(_lead(one, kind) for one in args), dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _lead(kwargs["device"], kind)
        return plain(self, func, types, args, kwargs)

    return dispatch
