"""What can a Triton kernel call? The functions of `triton.language`, on blocks of NumPy."""

import builtins
import math
import operator
import types

import numpy as np
import torch

from kernelcheck.triton_blocks import (
    BOOL,
    F32,
    I32,
    I64,
    TYPES,
    Block,
    DType,
    Pointer,
    as_block,
    combine,
    constant,
    promote,
    shaped,
    sizes,
)  # fmt: skip
from kernelcheck.triton_memory import Buffer, running, wrong


class constexpr:
    """Marks a parameter, or a global, that is known when the kernel is compiled."""

    def __init__(self, value) -> None:
        self.value = value


def arange(start: int, end: int) -> Block:
    start, end = constant(start, "the start of tl.arange"), constant(end, "the end of tl.arange")
    if end - start < 1 or (end - start) & (end - start - 1):
        raise wrong(f"the range of tl.arange must be a power of two, and it is {end - start}", "shapes")
    return Block(np.arange(start, end), I32)


def full(shape, value, dtype: DType) -> Block:
    shape = sizes(shape if isinstance(shape, tuple | list) else (shape,))
    return Block(np.broadcast_to(as_block(value).to(dtype).data, shape), dtype)


# ---- memory ----------------------------------------------------------------------------------------------------------


def _access(kind: str, pointer, mask) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return the offsets, which of them the mask lets through, and those, all checked and noted."""
    if not isinstance(pointer, Pointer):
        name = {"load": "tl.load", "store": "tl.store"}.get(kind, "an atomic operation")
        raise wrong(f"{name} takes a pointer, such as x_ptr + at, and this is a {type(pointer).__name__.lower()}")
    offsets, active = pointer.data, None
    if mask is not None:
        mask = as_block(mask, "the mask")
        if mask.dtype is not BOOL:
            raise wrong(f"a mask says yes or no for each element, and this one holds {mask.dtype}")
        if mask.data.ndim and not offsets.ndim:
            raise wrong("the mask is a block, and the pointer is to one element", "shapes")
        offsets, active = shaped(lambda: np.broadcast_arrays(offsets, mask.data), pointer, mask)
    return offsets, active, running[-1].touch(kind, pointer.buffer, offsets, active)


def load(pointer, mask=None, other=None, cache_modifier="", eviction_policy="", volatile=False) -> Block:
    offsets, active, at = _access("load", pointer, mask)
    buffer = pointer.buffer
    if active is None:
        return Block(buffer.read(offsets), buffer.dtype)
    if other is None:
        found = _undefined(buffer, offsets.shape, active)
    else:
        other = as_block(other, "other")
        found = np.array(shaped(lambda: np.broadcast_to(other.to(buffer.dtype).data, offsets.shape), pointer, other))
    found[active] = buffer.read(at)
    return Block(found, buffer.dtype)


def _undefined(buffer: Buffer, shape: tuple[int, ...], active: np.ndarray) -> np.ndarray:
    """Return what shows in a result, for a GPU promises nothing: NaN, and in further runs of a check other numbers."""
    launch, dtype, changed = running[-1], buffer.dtype, False
    if launch.watched and not active.all():
        line = launch.line()
        changed = launch.changed in ("", line)
        if line not in launch.undefined:
            what = f"program {launch.name()} loads {buffer.name} with a mask and without `other`"
            why = "the elements that the mask leaves out have no value, and the result depends on them"
            launch.undefined[line] = launch.fault("undefined", what, why, array=buffer.name)
    if dtype.kind == 2 and not changed:
        return np.full(shape, math.nan, dtype.numpy)
    return np.resize(np.array([119, -50] if changed else [100, -40]), shape).astype(dtype.numpy)


def store(pointer, value, mask=None, cache_modifier="", eviction_policy="") -> None:
    offsets, active, at = _access("store", pointer, mask)
    data = _to_store(pointer, value, offsets)
    data, at = data.reshape(-1) if active is None else data[active], at.reshape(-1)
    if running[-1].watched and at.size > 1:
        _one_value_each(pointer.buffer, at, data)
    pointer.buffer.write(at, data)


def _to_store(pointer: Pointer, value, offsets: np.ndarray) -> np.ndarray:
    """Return one value for each address, in the type of the memory."""
    value = as_block(value, "the value")
    if value.data.ndim and not pointer.data.ndim:
        raise wrong(f"a block of the shape {value.shape} is stored through a pointer to one element", "shapes")
    return shaped(lambda: np.broadcast_to(value.to(pointer.buffer.dtype).data, offsets.shape), value, pointer)


def _one_value_each(buffer: Buffer, at: np.ndarray, data: np.ndarray) -> None:
    order = np.argsort(at, kind="stable")
    at, data = at[order], data[order]
    clash = (at[1:] == at[:-1]) & (data[1:] != data[:-1])
    if clash.any():
        element = int(at[1:][clash][0])
        what = f"program {running[-1].name()} writes different values to element {element:,} of {buffer.name} at once"
        raise running[-1].fault("race", what, "which of them stays is undefined", array=buffer.name, element=element)


def _exchange(change, pointer, value, mask=None) -> Block:
    """Change elements one after the other, as atomic operations do, and return what they were before."""
    offsets, active, at = _access("atomic", pointer, mask)
    buffer, data = pointer.buffer, _to_store(pointer, value, offsets)
    active = np.ones(offsets.shape, bool) if active is None else active
    at, new, before = at.reshape(-1), data[active], np.zeros(at.size, buffer.dtype.numpy)
    once = np.unique(at).size == at.size
    for part in (slice(None),) if once else (slice(n, n + 1) for n in range(at.size)):
        before[part] = old = buffer.read(at[part])
        buffer.write(at[part], np.asarray(change(old, new[part])).astype(buffer.dtype.numpy))
    if buffer.dtype.kind == 2:
        running[-1].report.flops += at.size
    found = np.zeros(offsets.shape, buffer.dtype.numpy)
    found[active] = before
    return Block(found, buffer.dtype)


def _atomic(change):
    return lambda pointer, value, mask=None, sem=None, scope=None: _exchange(change, pointer, value, mask)


def _cas(pointer, cmp, val, sem=None, scope=None) -> Block:
    wanted = _to_store(pointer, cmp, pointer.data).reshape(-1)
    return _exchange(lambda old, new: np.where(old == wanted, new, old), pointer, val)


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def _function(name: str, compute):
    def function(x) -> Block:
        x = as_block(x)
        if name != "abs" and x.dtype.short not in ("fp32", "fp64"):
            raise wrong(f"tl.{name} takes fp32 or fp64, and this is {x.dtype}: write .to(tl.float32)")
        return Block(compute(x.data), x.dtype, counts=True)

    return function


def _where(condition, x, y) -> Block:
    plain = not isinstance(x, Block), not isinstance(y, Block)
    condition, x, y = as_block(condition).to(BOOL), as_block(x), as_block(y)
    dtype = promote(x.dtype, plain[0], y.dtype, plain[1])
    parts = condition.data, dtype.of(x.data), dtype.of(y.data)
    return Block(shaped(lambda: np.where(*parts), condition, x, y), dtype)


def _axis(x: Block, axis) -> int | None:
    axis = constant(axis, "the axis")
    if axis is not None and not -x.data.ndim <= axis < x.data.ndim:
        raise wrong(f"the axis {axis} does not exist in a block of the shape {x.shape}", "shapes")
    return axis


def _reduced(compute, x, axis, keep_dims: bool, dtype: DType) -> Block:
    running[-1].report.flops += x.numel if dtype.kind == 2 else 0
    return Block(compute.reduce(dtype.of(x.data), axis=_axis(x, axis), keepdims=keep_dims, dtype=dtype.numpy), dtype)


def _wide(x: Block, floats: bool) -> DType:
    """Return the type in which Triton reduces: small whole numbers in 32 bits, small floats in some functions, too."""
    if x.dtype.bits >= 32 or (x.dtype.kind == 2 and not floats):
        return x.dtype
    return F32 if x.dtype.kind == 2 else I32 if x.dtype.signed or x.dtype is BOOL else TYPES["uint32"]


def _sum(x, axis=None, keep_dims=False, dtype=None) -> Block:
    return _reduced(np.add, x, axis, keep_dims, dtype or _wide(x, floats=False))


def _extreme(compute, place):
    def extreme(x, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
        found = _reduced(compute, x, axis, keep_dims, _wide(x, floats=True))
        return (found, place(x, axis, keep_dims=keep_dims)) if return_indices else found

    return extreme


def _place(find):
    return lambda x, axis, tie_break_left=True, keep_dims=False: Block(
        find(x.data, axis=_axis(x, axis), keepdims=keep_dims), I32
    )


def _scan(compute):
    def scan(x, axis=0, reverse=False) -> Block:
        axis = _axis(x, axis)
        data = np.flip(x.data, axis) if reverse else x.data
        found = compute.accumulate(data, axis=axis, dtype=x.dtype.numpy)
        return Block(np.flip(found, axis) if reverse else found, x.dtype, counts=True)

    return scan


def dot(input, other, acc=None, input_precision=None, allow_tf32=None, max_num_imprecise_acc=None, out_dtype=F32):
    a, b = as_block(input), as_block(other)
    if a.dtype is not b.dtype:
        raise wrong(f"tl.dot takes two blocks of one type, and these are {a.dtype} and {b.dtype}")
    if a.data.ndim < 2 or a.data.ndim != b.data.ndim or a.shape[-1] != b.shape[-2]:
        raise wrong(f"tl.dot of blocks of the shapes {a.shape} and {b.shape}: the inner sizes differ", "shapes")
    if a.shape[-1] < 16:
        raise wrong(f"tl.dot needs at least 16 elements along the inner axis, and here are {a.shape[-1]}", "shapes")
    dtype = I32 if a.dtype.kind < 2 else a.dtype if a.dtype.name == "float64" else out_dtype
    wide = np.int32 if a.dtype.kind < 2 else np.promote_types(a.dtype.numpy, np.float32)
    data = a.data.astype(wide) @ b.data.astype(wide)
    running[-1].report.flops += 2 * a.numel * b.shape[-1]
    if acc is not None and (acc.shape != data.shape or acc.dtype is not dtype):
        what = f"the accumulator is {acc.dtype}{list(acc.shape)}, and the product {dtype}{list(data.shape)}"
        raise wrong(what, "shapes")
    return Block(data if acc is None else data + acc.data, dtype)


# ---- shapes ----------------------------------------------------------------------------------------------------------


def trans(x, *dims) -> Block:
    dims = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims
    return Block(np.transpose(x.data, dims) if dims else x.data.swapaxes(-1, -2), x.dtype)


def reshape(x, *shape, can_reorder=False) -> Block:
    return Block(shaped(lambda: x.data.reshape(sizes(shape)), x), x.dtype)


def broadcast_to(x, *shape) -> Block:
    return Block(shaped(lambda: np.broadcast_to(x.data, sizes(shape)), x), x.dtype)


# ---- the rest --------------------------------------------------------------------------------------------------------


def _range(*bounds, **options):
    """Count as `range` in a kernel does, where the number is one of the device, not of Python."""
    found = [as_block(one, "a bound of range") for one in bounds]
    dtype = I64 if any(one.dtype.bits == 64 for one in found) else I32
    return (Block(number, dtype) for number in builtins.range(*map(operator.index, found)))


def _static_range(*bounds):
    return builtins.range(*(constant(one, "a bound of tl.static_range") for one in bounds))


def _static_assert(condition, message="") -> None:
    if not condition:
        raise wrong(f"tl.static_assert failed: {message}", "assert")


def _print(prefix, *values, **options) -> None:
    print(f"program {running[-1].name()}: {prefix}", *values)


def _same(x, *_):
    return x


def cdiv(x, y):
    """Return x / y, rounded up."""
    return (x + y - 1) // y


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is not below `n`."""
    return 1 << max(n - 1, 0).bit_length()


_NAMES = ("exp", "exp2", "log", "log2", "sqrt", "sin", "cos", "floor", "ceil", "abs")
_MATH = {name: _function(name, getattr(np, name)) for name in _NAMES}
_MATH |= {
    "erf": _function("erf", lambda x: torch.erf(torch.from_numpy(np.array(x))).numpy()),
    "rsqrt": _function("rsqrt", lambda x: 1 / np.sqrt(x)),
    "fma": lambda x, y, z: x * y + z,
    "fdiv": lambda x, y, ieee_rounding=False: x / y,
}
Block.functions = {
    **_MATH, "sum": _sum, "max": _extreme(np.fmax, _place(np.argmax)), "min": _extreme(np.fmin, _place(np.argmin)),
    "argmax": _place(np.argmax), "argmin": _place(np.argmin), "cumsum": _scan(np.add), "cumprod": _scan(np.multiply),
    "trans": trans, "permute": trans, "reshape": reshape, "view": reshape, "broadcast_to": broadcast_to,
    "ravel": lambda x: reshape(x, x.numel),
    "expand_dims": lambda x, axis: Block(np.expand_dims(x.data, axis), x.dtype),
    "sigmoid": lambda x: 1 / (1 + _MATH["exp"](-x)),
    "cast": lambda x, dtype: as_block(x).to(dtype),
}  # fmt: skip


def _softmax(x, dim=0) -> Block:
    shares = _MATH["exp"](x - tl.max(x, dim, keep_dims=True))
    return shares / _sum(shares, dim, keep_dims=True)


class _Language(types.SimpleNamespace):
    def __getattr__(self, name: str):
        raise AttributeError(f"triton.language has no {name!r} here")


tl = _Language(
    **TYPES, **Block.functions,
    constexpr=constexpr, tensor=Block, dtype=DType,
    math=types.SimpleNamespace(**_MATH),
    extra=types.SimpleNamespace(libdevice=types.SimpleNamespace(**_MATH, tanh=_function("tanh", np.tanh))),
    program_id=lambda axis: Block(running[-1].program[constant(axis, "the axis")], I32),
    num_programs=lambda axis: Block(running[-1].grid[constant(axis, "the axis")], I32),
    arange=arange, full=full, load=load, store=store, dot=dot, where=_where, softmax=_softmax,
    zeros=lambda shape, dtype: full(shape, 0, dtype),
    zeros_like=lambda x: full(x.shape, 0, x.dtype),
    atomic_add=_atomic(operator.add), atomic_max=_atomic(np.fmax), atomic_min=_atomic(np.fmin),
    atomic_and=_atomic(operator.and_), atomic_or=_atomic(operator.or_), atomic_xor=_atomic(operator.xor),
    atomic_xchg=_atomic(lambda old, new: new), atomic_cas=_cas,
    maximum=lambda x, y: combine("maximum", x, y), minimum=lambda x, y: combine("minimum", x, y),
    clamp=lambda x, low, high: tl.minimum(tl.maximum(x, low), high),
    cdiv=cdiv, next_power_of_2=next_power_of_2, range=_range, static_range=_static_range,
    static_assert=_static_assert, static_print=print, device_print=_print,
    multiple_of=_same, max_contiguous=_same, max_constancy=_same, assume=_same, debug_barrier=lambda: None,
)  # fmt: skip
IN_KERNELS = {**vars(builtins), "range": _range, "min": tl.minimum, "max": tl.maximum, "print": _print}
