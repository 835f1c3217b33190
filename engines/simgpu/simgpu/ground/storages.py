"""Storage of a tensor, and the tensors that are alive."""

import gc
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a dense tensor; None for other layouts and for what has no storage."""
    tensor = local(tensor)
    inner = getattr(tensor, "_inner", tensor) if tensor.device.type in ("sim", "cuda", "mps", "xpu") else tensor
    if inner.layout is not torch.strided:
        return None
    try:
        return inner.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):  # the last of a lazy module's parameter, which is none yet
        return None


def memory_of(tensor: torch.Tensor) -> int:
    """Return which memory a dense tensor has, as C++ knows its storage; 0 where it has none."""
    storage = storage_of(tensor)
    return 0 if storage is None else storage._cdata


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor or of a collective's result, else the tensor itself."""
    for name in ("_local_tensor", "elem"):
        tensor = getattr(tensor, name, tensor)
    return tensor


def tensors_in(value: object) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def tensors_on(device: torch.device) -> list[tuple[torch.Tensor, str]]:
    """Return all tensors on `device` that Python knows, each with its owner; views come as tensors of their own."""
    tensors: list[torch.Tensor] = []
    modules: list[nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    groups: tuple[list[Any], ...] = tensors, modules, optimizers
    lists: dict[type, list[Any] | None] = {}  # by exact type: asking each of 300,000 objects for its bases takes long
    for candidate in gc.get_objects():
        kind = type(candidate)
        if kind not in lists:
            bases = (torch.Tensor, nn.Module, torch.optim.Optimizer)
            without_memory = issubclass(kind, FakeTensor | UninitializedBuffer | UninitializedParameter)
            of = [group for base, group in zip(bases, groups, strict=True) if issubclass(kind, base)]
            lists[kind] = of[0] if of and not without_memory else None
        group = lists[kind]
        if group is not None:
            group.append(candidate)
    owned: list[tuple[Any, str]] = [(tensor, "optimizer") for one in optimizers for tensor in states_of(one)]
    for module in modules:
        owned += [(buffer, "parameters") for buffer in module.__dict__.get("_buffers", {}).values()]
    for tensor in tensors:
        if isinstance(tensor, nn.Parameter):
            owned += [(tensor, "parameters"), (tensor.grad, "gradients")]
    owned += [(tensor, "activations") for tensor in tensors]
    return [(tensor, owner) for tensor, owner in owned if _is_on(tensor, device)]


def states_of(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Return the tensors that an optimizer keeps from step to step."""
    return tensors_in([list(state.values()) for state in getattr(optimizer, "state", {}).values()])


def _is_on(candidate: object, device: torch.device) -> bool:
    """Return whether `candidate` is a tensor on `device`; what raises when it is asked is none that we can count."""
    try:
        return isinstance(candidate, torch.Tensor) and candidate.device == device
    except Exception:
        return False
