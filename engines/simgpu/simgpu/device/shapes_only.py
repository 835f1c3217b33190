"""Shapes-only results of operators: memory of the right shape, without computing values.

PyTorch's own functions of shapes, those of the device `meta`, say how large results are; their memory is the CPU's and
is not written, so that most of it is never really there. What a program reads of values means nothing; mostly it is 0.
Small operators, views, and those whose result's shape depends on values are computed as ever.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

_SMALL = 2**14  # elements: such operators are computed, since asking for their shapes would take as long
_ZEROED_BYTES = 2**20
_SAME_MEMORY = ("_unsafe_view",)  # what PyTorch does not call a view


def computed(func: Any, plan: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the operator `func` of `plan` on CPU tensors, with values only where that is quick."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    large = max((tensor.numel() for tensor in tensors), default=0) > _SMALL
    same_memory = func.is_view or plan.name in _SAME_MEMORY
    if not large or plan.waits or plan.composite or same_memory or any(t.is_complex() for t in tensors):
        return func(*args, **kwargs)
    if plan.mutates:
        return _written(func, args, kwargs)
    try:
        shapes = func(*tree_map(_on_meta, tuple(args)), **{name: _on_meta(value) for name, value in kwargs.items()})
    except (NotImplementedError, RuntimeError, TypeError):
        return func(*args, **kwargs)  # it has no function of shapes, or the call is wrong
    return tree_map(_in_memory, shapes)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the arguments of an operator in place, unchanged except for their shape."""
    returned = func._schema.returns
    if torch.Tag.inplace_view in func.tags or any(one.alias_info is None for one in returned) or kwargs.get("out"):
        return func(*args, **kwargs)
    if not returned:
        return None
    changed = [arg for arg, one in zip(args, func._schema.arguments, strict=False) if _is_changed(one)]
    return changed[0] if len(returned) == 1 and changed else func(*args, **kwargs)


def _is_changed(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list):
        return [_on_meta(item) for item in value]
    return torch.device("meta") if isinstance(value, torch.device) else value


def _in_memory(value: Any) -> Any:
    """Return CPU memory for a tensor on `meta`: zeros where it is small, else what is there."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return made.zero_() if made.nbytes <= _ZEROED_BYTES else made
