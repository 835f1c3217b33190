"""Memory accesses of a Triton kernel: loads, stores and atomics, each checked."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from kernelcheck.triton.block_pointers import BlockPointer, padded
from kernelcheck.triton.blocks import BOOL, Block, Pointer, as_block, shaped
from kernelcheck.triton.memory import Buffer, running, wrong

_SMALL = "int1", "int8", "uint8", "int16", "uint16"  # no atomic operation changes these
_HALVES = "fp16", "bf16"  # these only atomic_add


def _access(name: str, pointer: Pointer, mask: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the offsets and which of them the mask lets through, None for all."""
    if not isinstance(pointer, Pointer):
        what = f"tl.{name} takes a pointer, such as x_ptr + at, and this is a {type(pointer).__name__.lower()}"
        raise wrong(what)
    if mask is None:
        return pointer.data, None
    mask = as_block(mask, "the mask")
    if mask.dtype is not BOOL:
        raise wrong(f"a mask says yes or no for each element, and this one holds {mask.dtype}: write at < n")
    if mask.data.ndim and not pointer.data.ndim:
        raise wrong("the mask is a block, and the pointer is to one element", "shapes")
    offsets, active = shaped(lambda: np.broadcast_arrays(pointer.data, mask.data), pointer, mask)
    if name != "load" and offsets.shape != pointer.shape:
        raise wrong(f"the mask has the shape {mask.shape}, and the pointers have {pointer.shape}", "shapes")
    return offsets, active


def _of_block(
    name: str, pointer: Any, mask: Any, boundary_check: Any, padding: Any = ""
) -> tuple[Pointer, Any, float | None]:
    """Return pointers to the elements of a block, with the mask and the filling that its options stand for."""
    if not isinstance(pointer, BlockPointer):
        if boundary_check not in ((), None) or padding:
            raise wrong(f"boundary_check and padding_option of tl.{name} are for block pointers: here use a mask")
        return pointer, mask, None
    if mask is not None:
        cure = "write boundary_check=(0,), with the axes to look at"
        raise wrong(f"tl.{name} takes no mask with a block pointer: {cure}")
    return pointer.pointers(), pointer.inside(boundary_check), padded(padding)


def load(
    pointer: Pointer | BlockPointer, mask: Any = None, other: Any = None, boundary_check: Any = (),
    padding_option: str = "", cache_modifier: str = "", eviction_policy: str = "", volatile: bool = False,
) -> Block:  # fmt: skip
    if isinstance(pointer, BlockPointer) and other is not None:
        raise wrong("tl.load takes no `other` with a block pointer: write padding_option='zero'")
    words = ("boundary_check", "padding_option") if isinstance(pointer, BlockPointer) else ("mask", "other")
    pointer, mask, filling = _of_block("load", pointer, mask, boundary_check, padding_option)
    other = filling if mask is not None and filling is not None else other
    if mask is None and other is not None:
        why = "`other` is what elements hold that a mask leaves out: give a mask too, or leave `other` out"
        raise wrong(f"tl.load has `other=` and no `mask=`; {why}")
    offsets, active = _access("load", pointer, mask)
    buffer, launch = pointer.buffer, running[-1]
    filled = None
    if other is not None:
        other = as_block(other, "other")
        if other.data.ndim and not pointer.data.ndim:
            raise wrong("`other` is a block, and the pointer is to one element", "shapes")
        filled = shaped(lambda: np.broadcast_to(other.to(buffer.dtype).data, offsets.shape), pointer, other)
    if not launch.computes:
        return Block(np.zeros(offsets.shape), buffer.dtype)
    elements = launch.touch("load", buffer, offsets, active)
    if active is None:
        return Block(buffer.read(offsets), buffer.dtype, loaded=True)
    loaded = np.array(filled) if filled is not None else _undefined(buffer, offsets.shape, active, *words)
    loaded[active] = buffer.read(elements)
    return Block(loaded, buffer.dtype, loaded=True)


def _undefined(buffer: Buffer, shape: tuple[int, ...], active: np.ndarray, masked: str, filler: str) -> np.ndarray:
    """Return stand-ins for what a mask leaves out."""
    if active.all():
        return np.zeros(shape, buffer.dtype.numpy)
    what = f"program {running[-1].name()} loads {buffer.name} with a {masked} and without `{filler}`"
    why = f"the elements that the {masked} leaves out have no value, and the result depends on them"
    floats = buffer.dtype.kind == 2
    return running[-1].left_open(what, why, shape, floats, array=buffer.name).astype(buffer.dtype.numpy)


def store(
    pointer: Pointer | BlockPointer, value: Any, mask: Any = None, boundary_check: Any = (),
    cache_modifier: str = "", eviction_policy: str = "",
) -> None:  # fmt: skip
    pointer, mask, _ = _of_block("store", pointer, mask, boundary_check)
    offsets, active = _access("store", pointer, mask)
    data, launch = _to_store(pointer, value, offsets), running[-1]
    if not launch.computes:
        return
    elements = launch.touch("store", pointer.buffer, offsets, active, data, pointer.loaded).reshape(-1)
    data, buffer = data.reshape(-1) if active is None else data[active], pointer.buffer
    if launch.watched and elements.size and type(buffer) is Buffer:
        _one_value_each(buffer, elements, data)
        launch.look_at_lanes("store", buffer, offsets, active, data != buffer.read(elements))
    buffer.write(elements, data)


def _to_store(pointer: Pointer, value: Any, offsets: np.ndarray) -> np.ndarray:
    """Return one value for each address, in the type of the memory."""
    value = as_block(value, "the value")
    if value.data.ndim and not pointer.data.ndim:
        raise wrong(f"a block of the shape {value.shape} is stored through a pointer to one element", "shapes")
    return shaped(lambda: np.broadcast_to(value.to(pointer.buffer.dtype).data, offsets.shape), value, pointer)


def _one_value_each(buffer: Buffer, elements: np.ndarray, data: np.ndarray) -> None:
    """Raise a race where lanes of the program write different values to one element, or count there together."""
    order = np.argsort(elements, kind="stable")
    elements, data, launch = elements[order], data[order], running[-1]
    twice = elements[1:] == elements[:-1]
    clash = twice & (data[1:] != data[:-1])
    if clash.any():
        element = int(elements[1:][clash][0])
        what = f"program {launch.name()} writes different values to element {element:,} of {buffer.name} at once"
        raise launch.fault("race", what, "which of them stays is undefined", array=buffer.name, element=element)
    places = elements[1:][twice]
    lost = launch.read_by_several(buffer, places) & (buffer.read(places) != data[1:][twice])
    if lost.any():
        element = int(places[lost][0])
        what = f"several elements of a block of program {launch.name()} read, change and write element {element:,}"
        why = "all of them read the old value, and one change stays: use tl.atomic_add"
        raise launch.fault("race", f"{what} of {buffer.name}", why, array=buffer.name, element=element)


def _exchange(name: str, change: Callable[..., Any], pointer: Pointer, *values: Any, mask: Any = None) -> Block:
    """Change elements one after the other, as atomic operations do, and return what they were before."""
    offsets, active = _access(name, pointer, mask)
    buffer, launch = pointer.buffer, running[-1]
    data = [_to_store(pointer, value, offsets) for value in values]
    _refuse_type(name, buffer)
    if not launch.computes:
        return Block(np.zeros(offsets.shape), buffer.dtype)
    elements = launch.touch("atomic", buffer, offsets, active).reshape(-1)
    active = np.ones(offsets.shape, bool) if active is None else active
    given, before = [one[active] for one in data], np.zeros(elements.size, buffer.dtype.numpy)
    once = np.unique(elements).size == elements.size
    for part in (slice(None),) if once else (slice(n, n + 1) for n in range(elements.size)):
        before[part] = old = buffer.read(elements[part])
        buffer.write(elements[part], np.asarray(change(old, *(one[part] for one in given))).astype(buffer.dtype.numpy))
    if buffer.dtype.kind == 2:
        launch.report.flops += elements.size
    result = np.zeros(offsets.shape, buffer.dtype.numpy)
    result[active] = before
    return Block(result, buffer.dtype)


def _refuse_type(name: str, buffer: Buffer) -> None:
    kind = buffer.dtype.short
    bits = name in ("atomic_and", "atomic_or", "atomic_xor") and buffer.dtype.kind == 2
    if bits or kind in _SMALL or (kind in _HALVES and name not in ("atomic_add", "atomic_cas")):
        raise wrong(f"tl.{name} does not exist for {kind}, the type of {buffer.name}")


def _atomic(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
    def atomic(pointer: Pointer, val: Any, mask: Any = None, sem: str | None = None, scope: str | None = None) -> Block:
        return _exchange(name, change, pointer, val, mask=mask)

    return atomic


def _cas(pointer: Pointer, cmp: Any, val: Any, sem: str | None = None, scope: str | None = None) -> Block:
    return _exchange("atomic_cas", lambda old, wanted, new: np.where(old == wanted, new, old), pointer, cmp, val)


_CHANGES: dict[str, Callable[..., Any]] = {
    "atomic_add": operator.add, "atomic_max": np.fmax, "atomic_min": np.fmin, "atomic_and": operator.and_,
    "atomic_or": operator.or_, "atomic_xor": operator.xor, "atomic_xchg": lambda old, new: new,
}  # fmt: skip
ACCESSES: dict[str, Callable[..., Any]] = {
    "load": load, "store": store, "atomic_cas": _cas,
    **{name: _atomic(name, change) for name, change in _CHANGES.items()},
}  # fmt: skip
