"""Factories under `torch.set_default_tensor_type`, as old programs set it."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from simgpu.face.tensors import FORMATS, OLD_TYPES
from simgpu.ground.replacements import Replacements


def replace(put: Replacements) -> None:
    """Patch PyTorch to accept defaults such as `torch.cuda.FloatTensor`."""
    put.put(torch, set_default_tensor_type=_default_type(torch.set_default_tensor_type))
    put.call(_make_by_default, None)


def _make_by_default(kind: Callable[..., torch.Tensor] | None) -> None:
    """Set the type that `torch.Tensor(…)` makes to `kind`, a type of CUDA; None restores it.

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
            _make_by_default(OLD_TYPES[short].make)
            torch.set_default_device("cuda")
            return
        plain(kind)
        _make_by_default(None)
        if torch.get_default_device().type == "cuda":
            torch.set_default_device(None)

    return set_default_tensor_type
