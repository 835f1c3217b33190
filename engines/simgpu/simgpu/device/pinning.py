"""Pinned memory of the host, and PyTorch's functions that allocate it.

PyTorch pins by a driver, which there is not. Here a storage is pinned when it is noted to be: copies ask for that.
"""

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils import _device

from simgpu.device import state
from simgpu.device.state import Device
from simgpu.ground import device_kind
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH, call_traced, is_tracing

__passes_on__ = True  # who calls one of these functions calls PyTorch's own
_FACTORIES = """arange bartlett_window blackman_window empty empty_like empty_permuted empty_strided eye full
full_like hamming_window hann_window kaiser_window linspace logspace normal ones ones_like rand rand_like randint
randint_like randn randn_like randperm range scalar_tensor tensor tril_indices triu_indices zeros zeros_like"""
_METHODS = "new_empty new_empty_strided new_full new_ones new_tensor new_zeros"
_DRAWS = "bernoulli binomial multinomial poisson"
_DRAWING_METHODS = """bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial normal_ random_
uniform_"""
_REFUSED = (
    'Attempted to set the storage of a tensor on device "cpu" to a storage on different device "{}".  This is no '
    "longer allowed; the devices must match."
)  # of MPS: https://github.com/pytorch/pytorch/issues/86060
_pinned: dict[int, weakref.ref[torch.UntypedStorage]] = {}


def replace_functions(put: Replacements) -> None:
    """Patch PyTorch to pin CPU tensors, also by the argument `pin_memory` of factories.

    What draws on the CPU refuses the generator of a GPU. TorchScript, which knows functions by identity, is told that
    they are the operators of before.
    """
    put.put(torch.Tensor, pin_memory=_pin_memory, is_pinned=_is_pinned)
    _device._device_constructors()  # remembers the functions that it is asked about: PyTorch's, not ours
    known = TORCH.jit._builtins._get_builtin_table()
    for names, wrap in ((_FACTORIES, _pinning), (_DRAWS, _drawing)):
        for name in names.split():
            function = wrap(getattr(torch, name))
            put.put(torch, **{name: function})
            put.put_item(known, id(function), f"aten::{name}")
    put.put(TORCH.utils.data.dataset, randperm=torch.randperm)  # by which `random_split` draws
    for names, wrap in ((_METHODS, _pinning), (_DRAWING_METHODS, _drawing)):
        for name in names.split():
            put.put(torch.Tensor, **{name: wrap(getattr(torch.Tensor, name))})


def _pinning(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a factory that keeps its argument `pin_memory`, which C++ would take to a driver."""

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if is_tracing() and not kwargs.get("pin_memory"):
            return call_traced(function, *args, **kwargs)
        if not kwargs:  # the two ways of nearly all calls, and the quickest
            return function(*args)
        if "pin_memory" not in kwargs and "generator" not in kwargs:
            return function(*args, **kwargs)
        pinned = kwargs.pop("pin_memory", False)
        if pinned and not device_kind.current.has_pinned_memory:  # PyTorch takes the device's memory there
            return function(*args, **{"device": state.world.devices[0], **kwargs})
        tensor = function(*args, **kwargs)
        if kwargs.get("generator") is not None:
            _check_generator(kwargs["generator"], tensor)
        return _pin(tensor) if pinned else tensor

    return made


def _drawing(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that draws for its first tensor, and looks at the generator that it is given."""

    @functools.wraps(function)
    def drawn(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = args[0] if args else kwargs.get("input")
        for generator in (*args[1:], kwargs.get("generator")):
            if isinstance(generator, TORCH._C.Generator) and isinstance(tensor, torch.Tensor):
                _check_generator(cast(torch.Generator, generator), tensor)
        return function(*args, **kwargs)

    return drawn


def _check_generator(generator: torch.Generator, drawn: torch.Tensor) -> None:
    """Raise as PyTorch does where the CPU was to draw with a generator of a GPU (`check_generator` in Generator.h)."""
    found = generator.device.type
    if drawn.device.type == "cpu" != found:
        raise RuntimeError(f"Expected a 'cpu' device type for generator but found '{found}'")


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    storage = tensor.untyped_storage()
    key = storage._cdata
    _pinned[key] = weakref.ref(storage, functools.partial(_pinned.pop, key))  # in Python, Ctrl-C inside would be lost
    return tensor


def _deprecate_device(name: str, device: Device) -> None:
    if device is not None:
        text = f"The argument 'device' of Tensor.{name}() is deprecated. Please do not pass this argument."
        warnings.warn(text, DeprecationWarning, stacklevel=3)


def _is_pinned(self: torch.Tensor, device: Device = None) -> bool:
    _deprecate_device("is_pinned", device)
    pinned = self.layout is torch.strided and self.untyped_storage()._cdata in _pinned
    return pinned and device_kind.current.has_pinned_memory


def _pin_memory(self: torch.Tensor, device: Device = None) -> torch.Tensor:
    if not device_kind.current.has_pinned_memory:
        raise RuntimeError(_REFUSED.format(state.world.devices[0]))
    _deprecate_device("pin_memory", device)
    return self if _is_pinned(self) else _pin(self.clone())
