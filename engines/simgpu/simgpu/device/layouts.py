"""Layout of a tensor's values in memory, one object for each, by which calls are recognised.

An operator that got tensors of the same layouts before gives the same kind of result for the same price.
"""

from typing import Any

import torch

_MOST = 4096  # ways that are remembered; a tensor keeps its own


class Layout:
    """GPU, sizes, strides and number format of a tensor; alike tensors usually share one object.

    Not `usual` are complex numbers and negative views: their bits are no part of it, so none is met twice.
    """

    __slots__ = ("device", "dtype", "in_order", "index", "nbytes", "sizes", "strides", "usual")

    def __init__(self, inner: torch.Tensor, index: int, usual: bool) -> None:
        self.index, self.device = index, torch.device("meta", index)  # as which C++ sees the GPU
        self.sizes, self.strides, self.dtype = inner.size(), inner.stride(), inner.dtype
        self.nbytes, self.in_order, self.usual = inner.nbytes, inner.is_contiguous(), usual


class _Sparse:
    """In the place of the layout of a sparse tensor, whose parts change with its values."""

    usual = False


SPARSE: Any = _Sparse()
_known: dict[tuple[Any, ...], Layout] = {}


def layout_of(tensor: Any) -> Any:
    """Return the layout of a `SimTensor`, which remembers it until its shape changes."""
    if tensor._layout is not None:
        return tensor._layout
    inner, index = tensor._inner, tensor._index
    if inner.dtype.is_complex or inner.is_neg():
        return Layout(inner, index, usual=False)
    key = index, inner.size(), inner.stride(), inner.dtype
    layout = _known.get(key)
    if layout is None:
        if len(_known) >= _MOST:
            _known.clear()
        layout = _known[key] = Layout(inner, index, usual=True)
    tensor._layout = layout
    return layout
