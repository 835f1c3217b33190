"""`torch.device(0)` on a face: in C++ a bare number names `sim` here.

`torch.device` is a type of C++ that no Python code can replace: programs compare types with it, and C++ makes its
objects. Its own type, `type`, becomes one that turns a number into `cuda:number`, or that of another kind, when it is
called, and else is equal. What reads the arguments of `.to`, which layers with a `.to` of their own call, is replaced.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from simgpu.device.tensor import SimTensor
from simgpu.ground import device_kind
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH


class _Kind(type):
    __slots__ = ()
    __module__: Any = property(lambda cls: "torch")  # else pickle would look for torch.device here

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and type(args[0]) is int and not kwargs:
            args = (device_kind.kind, *args)
        return super().__call__(*args, **kwargs)


def replace(put: Replacements) -> None:
    """Patch `torch.device` and `.to` to read a bare number as the index of a GPU."""
    put.put(TORCH._C._nn, _parse_to=_of_kind(TORCH._C._nn._parse_to))
    address = id(torch.device) + object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)  # of an object's type, in C
    where = ctypes.c_void_p.from_address(address)
    if where.value != id(type):
        return  # another kind of Python: there torch.device(0) says sim:0
    put.call(setattr, where, "value", id(type))
    where.value = id(_Kind)


def _of_kind(plain: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    @functools.wraps(plain)
    def parsed(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        device, *others = plain(*args, **kwargs)
        if device is not None and device.type == "sim":
            device = torch.device(device_kind.kind, device.index)
        like = args[0] if args else kwargs.get("tensor")
        if isinstance(like, SimTensor):  # C++ sees it on meta
            device = like.device
        return device, *others

    return parsed
