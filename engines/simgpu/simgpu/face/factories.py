"""What do PyTorch's factories do on the host where there is CUDA? They pin memory, and old programs set their type."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from simgpu.face.tensors import FORMATS, MAKE, OLD_TYPES
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH

__passes_on__ = True  # who calls one of these functions calls PyTorch's own
_PINNING = """arange empty empty_like empty_strided eye full full_like linspace ones ones_like rand rand_like randint
randn randn_like randperm tensor zeros zeros_like"""
_METHODS = "new_empty new_empty_strided new_full new_ones new_zeros"


def replace(put: Replacements) -> None:
    """Let factories know `pin_memory=True`, which C++ takes to a driver, and defaults such as `torch.cuda.FloatTensor`.

    TorchScript, which knows functions by identity, is told that they are the operators of before.
    """
    put.put(torch, **{name: _pinning(getattr(torch, name)) for name in _PINNING.split()})
    put.put(torch.Tensor, **{name: _pinning(getattr(torch.Tensor, name)) for name in _METHODS.split()})
    put.put(torch, set_default_tensor_type=_default_type(torch.set_default_tensor_type))
    put.call(_make_by_default, None)
    known = TORCH.jit._builtins._get_builtin_table()
    for name in (*MAKE, *_PINNING.split()):
        put.put_item(known, id(getattr(torch, name)), f"aten::{name}")


def _pinning(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a factory whose argument `pin_memory` is kept by simgpu, which has its own account of pinned memory."""

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not kwargs.pop("pin_memory", False):
            return function(*args, **kwargs)
        needs_gradient = kwargs.pop("requires_grad", False)  # pinning makes another tensor: that one is the leaf
        return function(*args, **kwargs).pin_memory().requires_grad_(needs_gradient)

    return made


def _make_by_default(kind: Callable[..., torch.Tensor] | None) -> None:
    """Let `torch.Tensor(…)` make what `kind`, a type of CUDA, makes; None: what it makes without CUDA's face.

    Classes that inherit from it are as before. Dynamo takes any function of these arguments for the plain one.
    """
    tensor: Any = torch.Tensor
    if "__new__" in vars(tensor):
        del tensor.__new__
    plain = tensor.__new__
    if kind is None:
        return

    def new(*args: Any, **kwargs: Any) -> torch.Tensor:
        return kind(*args[1:]) if args[0] is tensor and not kwargs else plain(*args, **kwargs)

    tensor.__new__ = staticmethod(new)


def _default_type(plain: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return `torch.set_default_tensor_type` that knows the types of CUDA: a number format and a default device."""

    @functools.wraps(plain)
    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else getattr(kind, "cuda_name", "")
        if name.startswith("torch.cuda."):
            short = name.rpartition(".")[2]
            torch.set_default_dtype(FORMATS[short])
            _make_by_default(OLD_TYPES[short])
            torch.set_default_device("cuda")
            return
        plain(kind)
        _make_by_default(None)
        if torch.get_default_device().type == "cuda":
            torch.set_default_device(None)

    return set_default_tensor_type
