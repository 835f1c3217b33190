"""Tensor descriptors: loads and stores of blocks whose edges are known, so that no mask is needed.

Its rules: https://triton-lang.org/main/python-api/generated/triton.language.make_tensor_descriptor.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelcheck.triton import access
from kernelcheck.triton.block_pointers import BlockPointer, numbers_of, padded
from kernelcheck.triton.blocks import Block, DType, Pointer, sizes
from kernelcheck.triton.memory import running, wrong

_ALIGNED = 16  # bytes
_MOST_AXES = 5


class TensorDescriptor:
    """A tensor of the shape `shape` as a kernel sees it, and the shape of the blocks that are loaded and stored."""

    def __init__(self, block: BlockPointer, filling: float) -> None:
        self.block, self._filling = block, filling

    block_shape: tuple[int, ...] = property(lambda self: self.block.shape)  # type: ignore[assignment]
    shape: tuple[Block, ...] = property(lambda self: self.block.whole)  # type: ignore[assignment]
    strides: tuple[Block, ...] = property(lambda self: self.block.strides)  # type: ignore[assignment]
    dtype: DType = property(lambda self: self.block.base.buffer.dtype)  # type: ignore[assignment]

    def load(self, offsets: Any) -> Block:
        """Return the block that begins at `offsets`; elements outside of the tensor are zero, or what was asked for."""
        pointers, inside = self._at(offsets)
        return access.load(pointers, mask=inside, other=self._filling)

    def store(self, offsets: Any, value: Any) -> None:
        """Store a block; elements outside of the tensor are left out."""
        pointers, inside = self._at(offsets, value)
        access.store(pointers, value, mask=inside)

    def __getattr__(self, name: str) -> Callable[[Any, Any], None]:
        change = access.ACCESSES.get(name) if name.startswith("atomic_") else None
        if change is None:
            raise wrong(f"a tensor descriptor has no .{name} here: it can load, store and atomic_add", "language")

        def changed(offsets: Any, value: Any) -> None:
            pointers, inside = self._at(offsets, value)
            change(pointers, value, mask=inside)

        changed.__module__ = __name__
        return changed

    def _at(self, offsets: Any, *values: Any) -> tuple[Pointer, Block]:
        for value in values:
            if getattr(value, "shape", ()) != self.block_shape:
                what = f"the descriptor stores blocks of the shape {self.block_shape}"
                raise wrong(f"{what}, and this one has {getattr(value, 'shape', ())}", "shapes")
        axes = len(self.block_shape)
        moved = BlockPointer(
            self.block.base, self.shape, self.strides, numbers_of("offsets", offsets, axes, narrow=True),
            self.block_shape,
        )  # fmt: skip
        inside = moved.inside(tuple(range(axes)))
        assert inside is not None
        return moved.pointers(), inside


def make_tensor_descriptor(
    base: Pointer, shape: Any, strides: Any, block_shape: Any, padding_option: str = "zero"
) -> TensorDescriptor:
    if not isinstance(base, Pointer) or base.shape:
        raise wrong("tl.make_tensor_descriptor begins at a pointer to one element, such as x_ptr")
    size, item = sizes(tuple(block_shape)), base.buffer.item
    if not 1 <= len(size) <= _MOST_AXES:
        raise wrong(f"a tensor descriptor has 1 to {_MOST_AXES} axes, and this one has {len(size)}", "shapes")
    if size[-1] * item < _ALIGNED:
        what = f"the last axis of a descriptor's block has at least {_ALIGNED} bytes"
        raise wrong(f"{what}, and {size[-1]} elements of {base.buffer.dtype} are {size[-1] * item}", "shapes")
    whole, steps = numbers_of("sizes", shape, len(size)), numbers_of("strides", strides, len(size))
    if not running or running[-1].computes:
        _aligned(base, [int(step.data) for step in steps])
    filling = padded(padding_option)
    return TensorDescriptor(BlockPointer(base, whole, steps, steps, size), 0 if filling is None else filling)


def _aligned(base: Pointer, strides: Sequence[int]) -> None:
    """Raise where the memory of a descriptor is not laid out as the hardware for it needs."""
    item, name = base.buffer.item, base.buffer.name
    if strides[-1] != 1:
        raise wrong(f"the last stride of a tensor descriptor is 1, and that of {name} is {strides[-1]}")
    if (start := (int(base.buffer.base) + int(base.data)) * item) % _ALIGNED:
        raise wrong(f"a tensor descriptor begins at a multiple of {_ALIGNED} bytes, and {name} here at byte {start:,}")
    for step in strides[:-1]:
        if step * item % _ALIGNED:
            what = f"the strides of a tensor descriptor are multiples of {_ALIGNED} bytes, but for the last"
            raise wrong(f"{what}, and one of {name} has {step} elements, which are {step * item} bytes")


@dataclass
class HostDescriptor:
    """A descriptor that the host makes and passes to a kernel: `triton.tools.tensor_descriptor.TensorDescriptor`."""

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: str = "zero"

    @classmethod
    def from_tensor(cls, tensor: Any, block_shape: Sequence[int], padding: str = "zero") -> HostDescriptor:
        """Return the descriptor of a whole tensor."""
        return cls(tensor, tensor.shape, tensor.stride(), block_shape, padding)

    def on(self, base: Pointer) -> TensorDescriptor:
        """Return the descriptor as a kernel sees it."""
        return make_tensor_descriptor(base, [*self.shape], [*self.strides], [*self.block_shape], self.padding)
