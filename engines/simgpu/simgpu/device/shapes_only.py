"""Shapes-only results of operators: memory of the right shape, without computing values.

PyTorch's own functions of shapes, those of the device `meta`, say how large results are; their memory is the CPU's and
is not written, so that most of it is never really there. What a program reads of values means nothing; mostly it is 0.
Small operators, views, and those whose result's shape depends on values are computed as ever.
"""

import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from simgpu.device.layouts import Layout

_SMALL = 2**14  # elements: such operators are computed, since asking for their shapes would take as long
_PAIRS = 2**20  # of elements of two tensors: their product, or one that is made of both, may be large
SMALL_BYTES = 2**20  # of which results are zeros
_SAME_MEMORY = ("_unsafe_view",)  # what PyTorch does not call a view


def computed(func: Any, plan: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the operator `func` of `plan` on CPU tensors, without values.

    Returns NotImplemented where they are to be computed all the same: small tensors, results that depend on values.
    """
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    same_memory = func.is_view or plan.name in _SAME_MEMORY
    if not _may_be_large(tensors, args) or plan.waits or plan.composite or same_memory:
        return NotImplemented
    if any(t.is_conj() or t.is_neg() for t in tensors if t.is_complex()):
        return NotImplemented
    if plan.mutates:
        return _written(func, args, kwargs)
    try:
        shapes = func(*tree_map(_on_meta, tuple(args)), **{name: _on_meta(value) for name, value in kwargs.items()})
    except (NotImplementedError, RuntimeError, TypeError):
        return NotImplemented  # it has no function of shapes, or the call is wrong
    return tree_map(in_memory, shapes)


def leaves_out(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is left unwritten: large, with values that are no indices."""
    return tensor.is_floating_point() and tensor.numel() > _SMALL


def made(operator: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Call a factory for the CPU; a large tensor stays unwritten."""
    sizes = args[0] if args and isinstance(args[0], list | tuple) else ()
    if math.prod(sizes) > _SMALL:
        like = operator(*args, device="meta", **kwargs)
        if leaves_out(like):
            return in_memory(like)
    return operator(*args, device="cpu", **kwargs)


def _may_be_large(tensors: list[torch.Tensor], args: Any) -> bool:
    """Return whether an operator has a large tensor, or may make one from small ones."""
    sizes = sorted([tensor.numel() for tensor in tensors])
    lists = [arg for arg in args if isinstance(arg, list) and all(type(n) is int for n in arg)]
    most, asked = max(sizes, default=0), max(map(math.prod, lists), default=0)  # as of `repeat` and `new_zeros`
    return most > _SMALL or math.prod(sizes[-2:]) > _PAIRS or max(asked, most * asked) > _PAIRS


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the arguments of an operator in place, unchanged except for their shape."""
    returned = func._schema.returns
    if (
        torch.Tag.inplace_view in func.tags
        or any(one.alias_info is None for one in returned)
        or kwargs.get("out") is not None
    ):
        return NotImplemented
    if not returned:
        return None
    aliases = (one.alias_info for one in func._schema.arguments)
    changed = [arg for arg, alias in zip(args, aliases, strict=False) if alias is not None and alias.is_write]
    return changed[0] if len(returned) == 1 and changed else NotImplemented


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list):
        return [_on_meta(item) for item in value]
    return torch.device("meta") if isinstance(value, torch.device) else value


def in_memory(value: Any) -> Any:
    """Return CPU memory for a tensor on `meta`, or a layout: zeros where it is small, else what is there."""
    if isinstance(value, Layout):
        sizes, strides = value.sizes, value.strides
    elif isinstance(value, torch.Tensor):
        sizes, strides = value.shape, value.stride()
    else:
        return value
    made = torch.empty_strided(sizes, strides, dtype=value.dtype)
    return made.zero_() if made.nbytes <= SMALL_BYTES else made
