"""Block pointers of `tl.make_block_ptr`: where a block lies, and which of its elements are inside."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernelcheck.triton.blocks import BOOL, Block, Pointer, as_block, combine, constant, sizes
from kernelcheck.triton.memory import wrong

_PADDINGS = {"": None, "zero": 0, "nan": math.nan}


@dataclass(frozen=True)
class BlockPointer:
    """A pointer to a block of the shape `shape`, which begins at `offsets` in a tensor of the shape `whole`."""

    base: Pointer
    whole: tuple[Block, ...]
    strides: tuple[Block, ...]
    offsets: tuple[Block, ...]
    shape: tuple[int, ...]

    dtype = type = property(lambda self: self.base.dtype)

    def advance(self, offsets: Any) -> BlockPointer:
        """Return the pointer moved by so many elements along each axis."""
        moved = numbers_of("offsets", offsets, len(self.shape), narrow=True)
        return replace(self, offsets=tuple(map(functools.partial(combine, "add"), self.offsets, moved)))

    def pointers(self) -> Pointer:
        """Return a pointer to each element of the block."""
        places = zip(self._places(), self.strides, strict=True)
        moves = [place.astype(np.int64) * stride.data.astype(np.int64) for place, stride in places]
        return Pointer(self.base.buffer, np.broadcast_to(self.base.data + sum(moves), self.shape))

    def inside(self, axes: Any) -> Block | None:
        """Return which elements lie in the tensor along the axes that are looked at, None where none is."""
        axes = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
        looked_at = [constant(axis, "an axis of boundary_check") for axis in axes]
        if not set(looked_at) <= set(range(len(self.shape))):
            raise wrong(f"boundary_check is {axes}, and the block has the axes 0 to {len(self.shape) - 1}", "shapes")
        if not looked_at:
            return None
        places = self._places()
        inside = [(places[axis] >= 0) & (places[axis] < self.whole[axis].data) for axis in looked_at]
        return Block(np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*inside)), self.shape), BOOL)

    def _places(self) -> list[np.ndarray]:
        """Return for each axis where the elements of the block stand along it."""
        ranges = np.ogrid[tuple(slice(size) for size in self.shape)]
        return [offset.data + part for offset, part in zip(self.offsets, ranges, strict=True)]


def padded(option: Any) -> float | None:
    """Return the value of elements outside the tensor, None where it is undefined."""
    if option not in _PADDINGS:
        raise wrong(f"padding_option is {option!r}; it may be 'zero' or 'nan'")
    return _PADDINGS[option]


def numbers_of(name: str, given: Any, count: int | None, *, narrow: bool = False) -> tuple[Block, ...]:
    """Return whole numbers, one for each axis, as numbers of the device."""
    parts = tuple(given) if isinstance(given, tuple | list) else (given,)
    blocks = tuple(as_block(part, f"one of the {name}") for part in parts)
    if count is not None and len(blocks) != count:
        raise wrong(f"the {name} are {len(blocks)} numbers, and the block has {count} axes", "shapes")
    for block in blocks:
        if block.dtype.kind == 2 or block.shape:
            raise wrong(f"the {name} of a block are single whole numbers, and here is {block.dtype}")
        if narrow and block.dtype.bits > 32:
            raise wrong(f"the {name} of a block have 32 bits: write .to(tl.int32), or move the base pointer")
    return blocks


def make_block_ptr(base: Pointer, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any) -> BlockPointer:
    if not isinstance(base, Pointer) or base.shape:
        raise wrong("tl.make_block_ptr begins at a pointer to one element, such as x_ptr or x_ptr + row * stride")
    size = sizes(tuple(block_shape) if isinstance(block_shape, tuple | list) else (block_shape,))
    axes = [constant(axis, "the order") for axis in (order if isinstance(order, tuple | list) else (order,))]
    if sorted(axes) != list(range(len(size))):
        raise wrong(f"the order {tuple(axes)} must hold the axes 0 to {len(size) - 1}, each once", "shapes")
    whole, steps = numbers_of("sizes", shape, len(size)), numbers_of("strides", strides, len(size))
    return BlockPointer(base, whole, steps, numbers_of("offsets", offsets, len(size), narrow=True), size)


def advance(base: BlockPointer, offsets: Any) -> BlockPointer:
    if not isinstance(base, BlockPointer):
        raise wrong("tl.advance moves what tl.make_block_ptr returned; other pointers move by +")
    return base.advance(offsets)
