"""Functions of `triton.language`, on NumPy blocks."""

from __future__ import annotations

import builtins
import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from kernelcheck.triton import blocks as device
from kernelcheck.triton.access import ACCESSES
from kernelcheck.triton.block_pointers import advance, make_block_ptr
from kernelcheck.triton.blocks import BOOL, F32, I32, I64, TYPES, Block, DType, as_block, constant, shaped
from kernelcheck.triton.descriptors import TensorDescriptor, make_tensor_descriptor
from kernelcheck.triton.memory import running, wrong
from kernelcheck.triton.philox import RANDOM

_PRECISIONS = "tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"


def arange(start: int, end: int) -> Block:
    start, end = constant(start, "the start of tl.arange"), constant(end, "the end of tl.arange")
    if end - start < 1 or (end - start) & (end - start - 1):
        raise wrong(f"the range of tl.arange must be a power of two, and it is {end - start}", "shapes")
    return Block(np.arange(start, end), I32)


def full(shape: Any, value: Any, dtype: DType) -> Block:
    if not isinstance(shape, tuple | list):
        raise wrong(f"a shape is a tuple of sizes, and here is {shape!r}: write ({shape},)", "shapes")
    block = as_block(value).to(dtype)
    if block.numel != 1:
        raise wrong(f"a block is filled with one number, and here is a block of the shape {block.shape}", "shapes")
    if isinstance(value, float) and value != 0 and dtype.kind == 1:
        raise wrong(f"{value} is no whole number, which {dtype} holds")
    return Block(np.broadcast_to(block.data, device.sizes(shape)), dtype)


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def _function(
    name: str, compute: Callable[..., Any], types_: tuple[str, ...] = ("fp32", "fp64"), gives: DType | None = None
) -> Callable[..., Any]:
    def function(*values: Any) -> Block:
        blocks = [as_block(value) for value in values]
        for block in blocks:
            if types_ and block.dtype.short not in types_:
                raise wrong(f"tl.{name} takes {' or '.join(types_)}, and this is {block.dtype}: write .to(tl.float32)")
        dtype = gives or next((block.dtype for block in blocks if block.dtype.bits == 64), blocks[0].dtype)
        return Block(shaped(lambda: compute(*(block.data for block in blocks)), *blocks), dtype, counts=True)

    return function


def _asked(name: str, holds: Callable[..., Any]) -> Callable[[Any], Block]:
    """Return a function of CUDA's library that asks something of each number."""

    def asked(x: Any) -> Block:
        return _function(f"extra.libdevice.{name}", holds)(x).to(BOOL)

    return asked


def _where(condition: Any, x: Any, y: Any) -> Block:
    plain = not isinstance(x, Block), not isinstance(y, Block)
    condition, x, y = as_block(condition).to(BOOL), as_block(x), as_block(y)
    dtype = device.promote(x.dtype, plain[0], y.dtype, plain[1])
    parts = condition.data, dtype.of(x.data), dtype.of(y.data)
    return Block(shaped(lambda: np.where(*parts), condition, x, y), dtype)


def _high_half(x: Any, y: Any) -> Block:
    x, y = as_block(x), as_block(y)
    if x.dtype is not y.dtype or x.dtype.bits != 32 or x.dtype.kind != 1:
        raise wrong(f"tl.umulhi multiplies whole numbers of 32 bits here, and these are {x.dtype} and {y.dtype}")
    return Block(shaped(lambda: x.data.astype(np.int64) * y.data >> 32, x, y), x.dtype)


def _axis(x: Block, axis: Any) -> int | None:
    axis = constant(axis, "the axis")
    if axis is not None and (not isinstance(axis, int) or not -x.data.ndim <= axis < x.data.ndim):
        raise wrong(f"the axis {axis} does not exist in a block of the shape {x.shape}", "shapes")
    return axis


def _reduced(compute: np.ufunc, x: Any, axis: Any, keep_dims: bool, dtype: DType) -> Block:
    running[-1].report.flops += x.numel if dtype.kind == 2 else 0
    if axis is None or x.data.ndim == 1:
        running[-1].reduced()
    return Block(compute.reduce(dtype.of(x.data), axis=_axis(x, axis), keepdims=keep_dims, dtype=dtype.numpy), dtype)


def _wide(x: Block, floats: bool) -> DType:
    """Return the type in which Triton reduces: small whole numbers in 32 bits, small floats in some functions, too."""
    if x.dtype.bits >= 32 or (x.dtype.kind == 2 and not floats):
        return x.dtype
    return F32 if x.dtype.kind == 2 else I32 if x.dtype.signed or x.dtype is BOOL else TYPES["uint32"]


def _sum(input: Any, axis: Any = None, keep_dims: bool = False, dtype: DType | None = None) -> Block:
    x = as_block(input)
    return _reduced(np.add, x, axis, keep_dims, dtype or _wide(x, floats=False))


def _bits(name: str, compute: np.ufunc) -> Callable[..., Any]:
    def reduced(input: Any, axis: Any = None, keep_dims: bool = False) -> Block:
        x = as_block(input)
        if x.dtype.kind == 2:
            raise wrong(f"tl.{name} is for whole numbers, and here is {x.dtype}")
        return _reduced(compute, x, axis, keep_dims, x.dtype)

    return reduced


def _extreme(compute: np.ufunc, indices: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(
        input: Any, axis: Any = None, return_indices: bool = False, return_indices_tie_break_left: bool = True,
        keep_dims: bool = False,
    ) -> Any:  # fmt: skip
        x = as_block(input)
        values = _reduced(compute, x, axis, keep_dims, _wide(x, floats=True))
        return (values, indices(x, axis, return_indices_tie_break_left, keep_dims)) if return_indices else values

    return extreme


def _place(find: Callable[..., Any]) -> Callable[..., Any]:
    def place(input: Any, axis: Any, tie_break_left: bool = True, keep_dims: bool = False) -> Block:
        axis = _axis(input, axis)
        if constant(tie_break_left, "tie_break_left"):
            return Block(find(input.data, axis=axis, keepdims=keep_dims), I32)
        # Triton leaves open which of equal ones it is. Here it is the last, so that nobody relies on the first.
        last = input.data.size if axis is None else input.shape[axis]
        return Block(last - 1 - find(np.flip(input.data, axis), axis=axis, keepdims=keep_dims), I32)

    return place


def _scan(compute: np.ufunc) -> Callable[..., Any]:
    def scan(input: Any, axis: Any = 0, reverse: bool = False, dtype: DType | None = None) -> Block:
        x, axis = as_block(input), _axis(input, axis)
        dtype = dtype or _wide(x, floats=False)
        data = np.flip(dtype.of(x.data), axis) if reverse else dtype.of(x.data)
        scanned = compute.accumulate(data, axis=axis, dtype=dtype.numpy)
        return Block(np.flip(scanned, axis) if reverse else scanned, dtype, counts=True)

    return scan


def _map_elementwise(scalar_fn: Callable[..., Any], *args: Any, pack: int = 1) -> Any:
    """Call a function of single numbers for each `pack` elements that lie side by side."""
    if not all(isinstance(one, Block) for one in args):
        raise wrong("tl.map_elementwise takes blocks: write tl.full((1,), …, tl.float32) for a number")
    parts = shaped(lambda: np.broadcast_arrays(*(one.data for one in args)), *args)
    count = constant(pack, "pack")
    rows = [part.reshape(-1, count) for part in parts] if running[-1].computes else [np.zeros((1, count))] * len(args)
    calls = [
        scalar_fn(*(Block(row[n, at], one.dtype) for row, one in zip(rows, args, strict=True) for at in range(count)))
        for n in range(len(rows[0]))
    ]
    single = isinstance(calls[0], Block)
    several = [(one,) if single else one for one in calls]
    made = []
    for start in range(0, len(several[0]), count):
        data = np.array([[one.data for one in call[start : start + count]] for call in several])
        whole = data.reshape(parts[0].shape) if running[-1].computes else np.zeros(parts[0].shape)
        made.append(Block(whole, several[0][start].dtype))
    return made[0] if single else tuple(made)


Blocks = tuple[Block, ...]


def _folded(combine_fn: Callable[..., Any], first: Blocks, second: Blocks) -> Blocks:
    """Apply the reader's combining function to many pairs of numbers at once."""
    if not hasattr(combine_fn, "fn"):
        name = getattr(combine_fn, "__name__", "it")
        raise wrong(f"{name} is a function of Python: write @triton.jit in the line above `def {name}`", "language")
    combined = combine_fn(*first, *second)
    combined = combined if isinstance(combined, tuple) else (combined,)
    for block, before in zip(combined, first, strict=True):
        if not isinstance(block, Block) or block.dtype is not before.dtype:
            got = block.dtype if isinstance(block, Block) else type(block).__name__
            raise wrong(f"a function that combines two numbers of {before.dtype} must return one, and returns {got}")
    return combined


def _reduce(input: Any, axis: Any, combine_fn: Callable[..., Any], keep_dims: bool = False) -> Any:
    several = input if isinstance(input, tuple) else (input,)
    dim = _axis(several[0], axis)
    parts = tuple(block if dim is not None else reshape(block, block.numel) for block in several)
    parts = tuple(Block(np.moveaxis(block.data, dim or 0, 0), block.dtype) for block in parts)
    if not running[-1].computes:
        _folded(combine_fn, *[tuple(Block(0, block.dtype) for block in parts)] * 2)
        parts = tuple(Block(block.data[:1], block.dtype) for block in parts)
    while len(parts[0].data) > 1:
        pairs = [tuple(Block(block.data[start::2], block.dtype) for block in parts) for start in (0, 1)]
        parts = _folded(combine_fn, *pairs)
    results = tuple(Block(block.data[0], block.dtype) for block in parts)
    if not results[0].shape:
        running[-1].reduced()
    if keep_dims:
        shape = tuple(1 if dim in (None, n, n - several[0].data.ndim) else size for n, size in
                      enumerate(several[0].shape))  # fmt: skip
        results = tuple(Block(block.data.reshape(shape), block.dtype) for block in results)
    return results if isinstance(input, tuple) else results[0]


def _associative_scan(input: Any, axis: Any, combine_fn: Callable[..., Any], reverse: bool = False) -> Any:
    several = input if isinstance(input, tuple) else (input,)
    dim = _axis(several[0], axis) or 0
    rows = [np.moveaxis(np.flip(block.data, dim) if reverse else block.data, dim, 0) for block in several]
    if not running[-1].computes:
        _folded(combine_fn, *[tuple(Block(0, block.dtype) for block in several)] * 2)
        return input
    now = tuple(Block(row[0], block.dtype) for row, block in zip(rows, several, strict=True))
    steps = [now]
    for n in range(1, len(rows[0])):
        behind = tuple(Block(row[n], block.dtype) for row, block in zip(rows, several, strict=True))
        steps.append(now := _folded(combine_fn, now, behind))
    stacked = [np.stack([each[n].data for each in steps], dim) for n in range(len(several))]
    made = tuple(Block(np.flip(data, dim) if reverse else data, block.dtype)
                 for data, block in zip(stacked, several, strict=True))  # fmt: skip
    return made if isinstance(input, tuple) else made[0]


def dot(
    input: Any, other: Any, acc: Block | None = None, input_precision: str | None = None,
    allow_tf32: bool | None = None, max_num_imprecise_acc: int | None = None, out_dtype: DType | None = None,
    trans_a: Any = None, trans_b: Any = None,
) -> Block:  # fmt: skip
    for name, given in (("trans_a", trans_a), ("trans_b", trans_b)):
        if given is not None:
            raise wrong(f"tl.dot has no `{name}` any more: transpose the block by tl.trans", "language")
    a, b = as_block(input), as_block(other)
    if a.dtype is not b.dtype:
        raise wrong(f"tl.dot takes two blocks of one type, and these are {a.dtype} and {b.dtype}")
    if a.data.ndim not in (2, 3) or a.data.ndim != b.data.ndim or a.shape[-1] != b.shape[-2]:
        raise wrong(f"tl.dot of blocks of the shapes {a.shape} and {b.shape}: the inner sizes differ", "shapes")
    if a.dtype.kind < 2 and a.dtype.name != "int8":
        raise wrong(f"tl.dot takes floating-point numbers or int8, and these are {a.dtype}")
    if a.shape[-1] < (least := {8: 32, 16: 16, 32: 8, 64: 4}[a.dtype.bits]):
        what = f"tl.dot of {a.dtype} needs at least {least} elements along the inner axis"
        raise wrong(f"{what}, and here are {a.shape[-1]}", "shapes")
    if input_precision is not None and str(input_precision).lower() not in _PRECISIONS:
        raise wrong(f"input_precision is {input_precision!r}; it may be {', '.join(_PRECISIONS)}")
    wanted = out_dtype or (acc.dtype if acc is not None and a.dtype.name == "float16" else F32)
    if wanted.name == "bfloat16":
        raise wrong("tl.dot has no results in bf16: write .to(tl.bfloat16) behind it")
    dtype = I32 if a.dtype.kind < 2 else a.dtype if a.dtype.bits == 64 else wanted if a.dtype.bits == 16 else F32
    wide = np.int32 if a.dtype.kind < 2 else np.promote_types(a.dtype.numpy, np.float32)
    precision = str(input_precision or ("ieee" if allow_tf32 is False else "tf32")).lower()
    rounded = to_tf32 if precision == "tf32" and a.dtype is F32 else np.asarray
    data = rounded(a.data.astype(wide)) @ rounded(b.data.astype(wide))
    running[-1].report.flops += 2 * a.numel * b.shape[-1]
    if acc is not None and (acc.shape != data.shape or acc.dtype is not dtype):
        what = f"the accumulator is {acc.dtype}{list(acc.shape)}, and the product {dtype}{list(data.shape)}"
        raise wrong(what, "shapes")
    return Block(data if acc is None else data + acc.data, dtype)


_FORMATS = {"e2m1": "uint8", "e4m3": "float8e4nv", "e5m2": "float8e5", "bf16": "bfloat16", "fp16": "float16"}
_FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _unscaled(name: str, block: Block, scale: Any, form: str, k_pack: bool, k_axis: int) -> np.ndarray:
    """Return the numbers of a block in a microscaling format: its own, each times the scale of its group along k."""
    form, scale = constant(form, "a format"), device.plain(scale)
    wanted = TYPES[_FORMATS[form]] if form in _FORMATS else None
    if wanted is None or block.dtype.name not in (wanted.name, f"uint{wanted.bits}"):
        asked = f"holds {wanted.name}, or its bits in uint{wanted.bits}" if wanted else f"may be {', '.join(_FORMATS)}"
        raise wrong(f"{name} of tl.dot_scaled has the format {form!r}, which {asked}: it is {block.dtype}")
    data = block.to(wanted, bitcast=True).data
    if form == "e2m1":  # two numbers in a byte, the first in the low bits
        axis = k_axis if constant(k_pack, "k_pack") else -3 - k_axis
        halves = np.moveaxis(np.stack([data & 15, data >> 4]), 0, data.ndim + axis + 1)
        bits = halves.reshape([n * (2 if place == data.ndim + axis else 1) for place, n in enumerate(data.shape)])
        data = np.where(bits & 8, -1, 1) * _FOUR_BITS[bits & 7]
    if scale is None:
        return data.astype(np.float32)
    rows = scale.data if scale.dtype.kind == 2 else np.exp2(np.where(scale.data == 255, np.nan, scale.data - 127.0))
    sizes_ = data.shape if k_axis == -1 else data.swapaxes(-1, -2).shape
    if scale.shape[:-1] != sizes_[:-1] or sizes_[-1] not in (16 * scale.shape[-1], 32 * scale.shape[-1]):
        what = f"the scale of {name} must be {(*sizes_[:-1], sizes_[-1] // 32)}, one for 32 numbers along k"
        raise wrong(f"{what}, and it is {scale.shape}", "shapes")
    each = np.repeat(rows, sizes_[-1] // scale.shape[-1], -1)
    return (data * (each if k_axis == -1 else each.swapaxes(-1, -2))).astype(np.float32)


def dot_scaled(
    lhs: Any, lhs_scale: Any, lhs_format: str, rhs: Any, rhs_scale: Any, rhs_format: str, acc: Block | None = None,
    fast_math: bool = False, lhs_k_pack: bool = True, rhs_k_pack: bool = True, out_dtype: DType = F32,
) -> Block:  # fmt: skip
    a = _unscaled("lhs", as_block(lhs), lhs_scale, lhs_format, lhs_k_pack, -1)
    b = _unscaled("rhs", as_block(rhs), rhs_scale, rhs_format, rhs_k_pack, -2)
    return dot(Block(a, F32), Block(b, F32), acc, "ieee", out_dtype=out_dtype)


def to_tf32(numbers: np.ndarray) -> np.ndarray:
    """Return float32 numbers with the 10 fractional bits of TF32, to the nearest.

    It is Triton's default: https://triton-lang.org/main/python-api/generated/triton.language.dot.html
    """
    bits = numbers.astype(np.float32).view(np.uint32)
    cut = ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(numbers), cut, numbers)


# ---- shapes ----------------------------------------------------------------------------------------------------------


def trans(input: Any, *dims: Any) -> Block:
    last = (*range(input.data.ndim - 2), input.data.ndim - 1, input.data.ndim - 2)
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims or last
    if sorted(order) != list(range(input.data.ndim)):
        raise wrong(f"the axes {tuple(order)} are not those of a block of the shape {input.shape}", "shapes")
    return Block(np.transpose(input.data, order), input.dtype)


def reshape(input: Any, *shape: Any, can_reorder: bool = False) -> Block:
    wanted = device.sizes(shape)
    if np.prod(wanted, dtype=int) != input.numel:
        raise wrong(f"a block of the shape {input.shape} has not as many elements as one of {wanted}", "shapes")
    return Block(input.data.reshape(wanted), input.dtype)


def broadcast_to(input: Any, *shape: Any) -> Block:
    wanted = device.sizes(shape)
    if input.data.ndim not in (0, len(wanted)):
        what = f"a block of the shape {input.shape} has not as many axes as {wanted}"
        raise wrong(f"{what}: add one by [:, None]", "shapes")
    return Block(shaped(lambda: np.broadcast_to(input.data, wanted), input), input.dtype)


def _broadcast(input: Any, other: Any) -> tuple[Block, Block]:
    parts = shaped(lambda: np.broadcast_arrays(input.data, other.data), input, other)
    return Block(parts[0], input.dtype), Block(parts[1], other.dtype)


def _expand_dims(input: Any, axis: Any) -> Block:
    axes = tuple(axis) if isinstance(axis, tuple | list) else (constant(axis, "the axis"),)
    try:
        return Block(np.expand_dims(input.data, axes), input.dtype)
    except (ValueError, IndexError):  # NumPy's error for an axis is both
        raise wrong(f"the axis {axis} cannot be added to a block of the shape {input.shape}", "shapes") from None


def _squeeze(x: Any, dim: int) -> Block:
    if x.shape[_axis(x, dim)] != 1:
        raise wrong(f"the axis {dim} of a block of the shape {x.shape} is not of size 1", "shapes")
    return Block(np.squeeze(x.data, dim), x.dtype)


def _join(a: Any, b: Any) -> Block:
    a, b = as_block(a), as_block(b)
    if a.dtype is not b.dtype:
        raise wrong(f"tl.join takes two blocks of one type, and these are {a.dtype} and {b.dtype}")
    return Block(np.stack(shaped(lambda: np.broadcast_arrays(a.data, b.data), a, b), -1), a.dtype)


def _split(a: Any) -> tuple[Block, Block]:
    if not a.shape or a.shape[-1] != 2:
        raise wrong(f"tl.split takes a block whose last axis has 2 elements, and this one is {a.shape}", "shapes")
    return Block(a.data[..., 0], a.dtype), Block(a.data[..., 1], a.dtype)


def _interleave(a: Any, b: Any) -> Block:
    both = _join(a, b)
    return reshape(both, (*both.shape[:-2], 2 * both.shape[-2])) if both.data.ndim > 1 else both


def _cat(input: Any, other: Any, can_reorder: bool = False, dim: int = 0) -> Block:
    return Block(np.concatenate([input.data, other.data]), input.dtype)


def _gather(src: Any, index: Any, axis: Any) -> Block:
    if index.dtype.kind == 2 or index.data.ndim != src.data.ndim:
        what = "tl.gather takes whole numbers with as many axes as the block"
        raise wrong(f"{what}, and here is {index.dtype}", "shapes")
    inside = np.clip(index.data, 0, src.shape[_axis(src, axis)] - 1)
    return Block(shaped(lambda: np.take_along_axis(src.data, inside, axis), src, index), src.dtype)


def _histogram(input: Any, num_bins: int, mask: Block | None = None) -> Block:
    if input.dtype.bits != 32 or input.dtype.kind != 1:
        raise wrong(f"tl.histogram counts whole numbers of 32 bits, and these are {input.dtype}")
    numbers = input.data if mask is None else input.data[np.broadcast_to(mask.data, input.shape)]
    inside = numbers[(numbers >= 0) & (numbers < num_bins)]
    return Block(np.bincount(inside.reshape(-1), minlength=num_bins), I32)


def _sort(x: Any, dim: int | None = None, descending: bool = False) -> Block:
    if dim not in (None, -1, x.data.ndim - 1):
        raise wrong("tl.sort sorts along the last axis alone", "shapes")
    ordered = np.sort(x.data, -1)
    return Block(np.flip(ordered, -1) if descending else ordered, x.dtype)


def _flip(x: Any, dim: int | None = None) -> Block:
    return Block(np.flip(x.data, -1 if dim is None else _axis(x, dim)), x.dtype)


# ---- the rest --------------------------------------------------------------------------------------------------------


def _range(*bounds: Any, **options: Any) -> Iterator[Block]:
    """Count as `range` in a kernel does, where the number is one of the device, not of Python."""
    blocks = [as_block(bound, "a bound of range") for bound in bounds]
    dtype = I64 if any(block.dtype.bits == 64 for block in blocks) else I32
    return (Block(number, dtype) for number in builtins.range(*map(operator.index, blocks)))


def _static_range(*bounds: Any) -> range:
    return builtins.range(*(constant(one, "a bound of tl.static_range") for one in bounds))


def _static_assert(condition: Any, message: Any = "") -> None:
    if not constant(condition, "what tl.static_assert looks at"):
        raise wrong(f"tl.static_assert failed: {message}", "assert")


def _device_assert(cond: Any, msg: str = "", mask: Any = None) -> None:
    holds = as_block(cond).data.astype(bool) | ~as_block(True if mask is None else mask).data
    if running[-1].computes and not holds.all():
        raise wrong(f"tl.device_assert failed: {msg}", "assert")


def _print(prefix: Any, *values: Any, **options: Any) -> None:
    if not isinstance(prefix, str):
        raise wrong("print begins with a text in quotation marks, then come the values: print('x', x)")
    if running[-1].computes:
        print(f"program {running[-1].name()}: {prefix}", *values)


def _static_print(*values: Any, **options: Any) -> None:
    if not running[-1].computes:  # as a kernel is compiled, when numbers of the device have a type only
        print(*(f"{one.dtype}{list(one.shape)}" if isinstance(one, Block) else one for one in values), **options)


def _same(x: Any, *_: Any) -> Any:
    return x


def _number(name: str, which: str) -> Callable[..., Any]:
    def number(axis: int) -> Block:
        if constant(axis, "the axis") not in (0, 1, 2):
            raise wrong(f"the axis of tl.{name} is 0, 1 or 2, and here is {axis}")
        here = getattr(running[-1], which)[constant(axis, "the axis")]
        return Block(here, I32, numbered=name == "program_id")

    return number


def _sanitized(name: str) -> Callable[..., Any]:
    return lambda x, y, sanitize_overflow=True: device.combine(name, x, y)


def cdiv(x: Any, y: Any) -> Any:
    """Return x / y, rounded up."""
    return (x + y - 1) // y


def host_cdiv(x: int, y: int) -> int:
    """Return x / y, rounded up: `triton.cdiv`, which computes with constants alone inside a kernel."""
    if isinstance(x, Block) or isinstance(y, Block):
        raise wrong("triton.cdiv computes on the host; in a kernel write tl.cdiv")
    return cdiv(x, y)


def swizzle2d(i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> tuple[Any, Any]:
    """Return where a tile lies when the tiles are counted down the columns of each group of `size_g` rows."""
    number, group_size = i * size_j + j, size_g * size_j
    first = number // group_size * size_g
    rows, within = tl.minimum(size_i - first, size_g), number % group_size
    return first + within % rows, within // rows


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is not below `n`."""
    if isinstance(n, Block):
        raise wrong("a power of two of a number of the device is not known when the kernel is compiled: pass it in")
    return 1 << max(n - 1, 0).bit_length()


def _of_torch(compute: Callable[..., torch.Tensor]) -> Callable[..., np.ndarray]:
    return lambda *numbers: compute(*(torch.from_numpy(np.array(one)) for one in numbers)).numpy()


def _leading_zeros(x: np.ndarray) -> np.ndarray:
    """Return how many bits before the first 1 are 0."""
    for shift in (1, 2, 4, 8, 16, 32)[: x.itemsize.bit_length() + 2]:
        x = x | (x.view(f"u{x.itemsize}") >> np.uint8(shift)).view(x.dtype)
    return np.bitwise_count(~x.view(f"u{x.itemsize}"))


_NAMES = "exp", "exp2", "log", "log2", "sqrt", "sin", "cos", "floor", "ceil"
_MATH: dict[str, Callable[..., Any]] = {
    **{name: _function(name, getattr(np, name)) for name in _NAMES},
    "abs": _function("abs", np.abs, ()),
    "erf": _function("erf", _of_torch(torch.erf)),
    "rsqrt": _function("rsqrt", lambda x: 1 / np.sqrt(x)),
    "sqrt_rn": _function("sqrt_rn", np.sqrt, ("fp32",)),
}
_OF_TWO: dict[str, Callable[..., Any]] = {
    "fma": lambda x, y, z: x * y + z,
    "fdiv": lambda x, y, ieee_rounding=False, approx=False: x / y,
    "div_rn": _function("div_rn", np.divide, ("fp32",)),
    "umulhi": _high_half,
}
_LIBRARY: dict[str, Callable[..., Any]] = {
    "tan": np.tan, "tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "log1p": np.log1p, "expm1": np.expm1, "log10": np.log10, "cbrt": np.cbrt, "rint": np.rint, "trunc": np.trunc,
    "fmod": np.fmod, "hypot": np.hypot, "copysign": np.copysign,
    "fdim": lambda x, y: np.fmax(x - y, 0),
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), "nearbyint": np.rint,
    "fast_expf": np.exp, "fast_logf": np.log, "fast_dividef": np.divide, "fast_sinf": np.sin, "fast_cosf": np.cos,
    "fast_tanhf": np.tanh, "fast_log2f": np.log2, "fast_log10f": np.log10, "fast_powf": np.power,
    "fast_exp10f": lambda x: np.power(np.float32(10), x), "exp10": lambda x: np.power(x.dtype.type(10), x),
    "fast_tanf": np.tan, "rcbrt": lambda x: 1 / np.cbrt(x), "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "sinpi": lambda x: np.sin(np.pi * x), "cospi": lambda x: np.cos(np.pi * x), "logb": lambda x: np.frexp(x)[1] - 1,
    "saturatef": lambda x: np.clip(np.nan_to_num(x), 0, 1), "remainder": lambda x, y: x - y * np.rint(x / y),
    "nextafter": np.nextafter, "add_rn": np.add, "sub_rn": np.subtract, "mul_rn": np.multiply, "rcp_rn": np.reciprocal,
    "rsqrt_rn": lambda x: 1 / np.sqrt(x), "fma_rn": lambda x, y, z: x * y + z,
    **{f"norm{n}d": lambda *x: np.sqrt(sum(one * one for one in x)) for n in (3, 4)},
    **{name: _of_torch(compute) for name, compute in {
        "erfc": torch.erfc, "erfcx": torch.special.erfcx, "erfinv": torch.erfinv, "lgamma": torch.lgamma,
        "normcdf": torch.special.ndtr, "normcdfinv": torch.special.ndtri, "j0": torch.special.bessel_j0,
        "j1": torch.special.bessel_j1, "y0": torch.special.bessel_y0, "y1": torch.special.bessel_y1,
        "cyl_bessel_i0": torch.special.i0, "cyl_bessel_i1": torch.special.i1,
    }.items()},
}  # fmt: skip
_ROUNDED = {"n": np.rint, "z": np.trunc, "d": np.floor, "u": np.ceil}
_INTEGERS = {"int": "int32", "uint": "uint32", "ll": "int64", "ull": "uint64"}
_OF_TYPES: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {  # what a function takes and what it gives
    "llrint": (np.rint, ("fp32", "fp64"), "int64"), "llround": (_LIBRARY["round"], ("fp32", "fp64"), "int64"),
    "ilogb": (_LIBRARY["logb"], ("fp32", "fp64"), "int32"), "signbit": (np.signbit, ("fp32", "fp64"), "int32"),
    "popc": (np.bitwise_count, ("int32", "int64"), "int32"), "clz": (_leading_zeros, ("int32", "int64"), "int32"),
    "ffs": (lambda x: np.bitwise_count(x ^ (x - 1)) * (x != 0), ("int32", "int64"), "int32"),
    "float_as_int": (lambda x: x.view(np.int32), ("fp32",), "int32"),
    "float_as_uint": (lambda x: x.view(np.uint32), ("fp32",), "uint32"),
    **{f"{start}_as_float": (lambda x: x.view(np.float32), (kind,), "float32")
       for start, kind in (("int", "int32"), ("uint", "uint32"))},
    **{f"{start}2{end}_r{mode}": (compute, (kind,), made) for start, kind in (("float", "fp32"), ("double", "fp64"))
       for end, made in _INTEGERS.items() for mode, compute in _ROUNDED.items()},
    **{f"{start}2{end}_rn": (np.asarray, (kind,), made) for start, kind in _INTEGERS.items()
       for end, made in (("float", "float32"), ("double", "float64"))},
}  # fmt: skip
Block.functions = {
    **_MATH, "sum": _sum, "max": _extreme(np.fmax, _place(np.argmax)), "min": _extreme(np.fmin, _place(np.argmin)),
    "argmax": _place(np.argmax), "argmin": _place(np.argmin), "cumsum": _scan(np.add), "cumprod": _scan(np.multiply),
    "xor_sum": _bits("xor_sum", np.bitwise_xor), "reduce_or": _bits("reduce_or", np.bitwise_or),
    "reduce": _reduce, "associative_scan": _associative_scan,
    "trans": trans, "permute": trans, "reshape": reshape, "view": reshape, "broadcast_to": broadcast_to,
    "ravel": lambda x, can_reorder=False: reshape(x, x.numel), "expand_dims": _expand_dims, "split": _split,
    "sort": _sort, "flip": _flip, "gather": _gather, "histogram": _histogram, "cdiv": cdiv,
    "sigmoid": lambda x: 1 / (1 + _MATH["exp"](-x)),
    "cast": lambda x, dtype, fp_downcast_rounding=None, bitcast=False: as_block(x).to(dtype, bitcast=bitcast),
}  # fmt: skip
for _called in ("max", "min", "argmax", "argmin", "cumsum", "cumprod", "sum", "reduce", "associative_scan"):
    Block.functions[_called].__qualname__ = f"tl.{_called}"  # as Python's messages name it


def _softmax(x: Any, dim: Any = None, *, keep_dims: Any = None, ieee_rounding: bool = False) -> Block:
    shares = _MATH["exp"](x - tl.max(x, dim or 0, keep_dims=True))
    return shares / _sum(shares, dim or 0, keep_dims=True)


Block.functions["softmax"] = _softmax


_TODAY = "tensor descriptors are made by tl.make_tensor_descriptor today, with .load and .store"
_EXPERIMENTAL = "make_tensor_descriptor", "descriptor_load", "descriptor_store"
_NOT_HERE = {
    **{f"_experimental_{name}": _TODAY for name in _EXPERIMENTAL},
    "inline_asm_elementwise": "PTX cannot run here",
    "libdevice": "its functions are in tl.extra.libdevice today",
}


class _Language(types.SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        if name in _NOT_HERE:
            raise wrong(f"tl.{name}: {_NOT_HERE[name]}", "language")
        raise AttributeError(f"triton.language has no {name!r} here")


def _pow(x: Any, y: Any) -> Block:
    """Return powers; the exponent may be a whole number of 32 bits."""
    y = as_block(y)
    return _function("extra.libdevice.pow", np.power)(x, y.to(as_block(x).dtype) if y.dtype is I32 else y)


_LIBDEVICE = _Language(
    **_MATH, fma=_OF_TWO["fma"], pow=_pow,
    isnan=_asked("isnan", np.isnan), isinf=_asked("isinf", np.isinf), finitef=_asked("finitef", np.isfinite),
    **{name: _function(f"extra.libdevice.{name}", compute) for name, compute in _LIBRARY.items()},
    **{name: _function(f"extra.libdevice.{name}", compute, takes, TYPES[gives])
       for name, (compute, takes, gives) in _OF_TYPES.items()},
    **{name: lambda x, n: as_block(x) * _MATH["exp2"](as_block(n).to(F32)) for name in ("ldexp", "scalbn")},
)  # fmt: skip
tl: Any = _Language(
    **TYPES, **Block.functions, **ACCESSES, **RANDOM, **_OF_TWO,
    constexpr=device.constexpr, tensor=Block, dtype=DType,
    math=_Language(**_MATH, **_OF_TWO),
    extra=_Language(libdevice=_LIBDEVICE, cuda=_Language(libdevice=_LIBDEVICE)),
    swizzle2d=swizzle2d, program_id=_number("program_id", "program"), num_programs=_number("num_programs", "grid"),
    arange=arange, full=full, dot=dot, dot_scaled=dot_scaled, map_elementwise=_map_elementwise, where=_where,
    make_block_ptr=make_block_ptr, advance=advance,
    make_tensor_descriptor=make_tensor_descriptor, tensor_descriptor=TensorDescriptor,
    load_tensor_descriptor=lambda desc, offsets: desc.load(offsets),
    store_tensor_descriptor=lambda desc, offsets, value: desc.store(offsets, value),
    zeros=lambda shape, dtype: full(shape, 0, dtype),
    zeros_like=lambda input: full(input.shape, 0, input.dtype),
    to_tensor=as_block, broadcast=_broadcast, join=_join, interleave=_interleave, cat=_cat,
    squeeze=_squeeze, unsqueeze=_expand_dims,
    topk=lambda x, k, dim=None, descending=True: Block(_sort(x, dim, descending).data[..., :k], x.dtype),
    PropagateNan=types.SimpleNamespace(NONE=0, ALL=1), const=types.SimpleNamespace(),
    maximum=lambda x, y, propagate_nan=0: device.combine("highest" if propagate_nan else "maximum", x, y),
    minimum=lambda x, y, propagate_nan=0: device.combine("lowest" if propagate_nan else "minimum", x, y),
    add=_sanitized("add"), sub=_sanitized("sub"), mul=_sanitized("mul"),
    clamp=lambda x, min, max, propagate_nan=0: tl.minimum(tl.maximum(x, min, propagate_nan), max, propagate_nan),
    range=_range, static_range=_static_range,
    static_assert=_static_assert, static_print=_static_print, device_print=_print, device_assert=_device_assert,
    multiple_of=_same, max_contiguous=_same, max_constancy=_same, assume=_same,
    debug_barrier=lambda: running[-1].barrier(),
)  # fmt: skip


def get_int_dtype(bitwidth: int, signed: bool) -> DType:
    """Return the type of whole numbers with so many bits."""
    return TYPES[f"{'' if signed else 'u'}int{bitwidth}"]


def _log2(size: int) -> int:
    """Return the exponent of a power of two."""
    return constant(size, "a size").bit_length() - 1


tl.core, tl.get_int_dtype, tl.standard = tl, get_int_dtype, _Language(_log2=_log2)  # as Triton's rooms are called


def _of_several(choose: Callable[..., Any], blocks: Callable[..., Any]) -> Callable[..., Any]:
    """Return `min` or `max` of kernels: of constants a constant, of others a block."""

    def of_several(first: Any, second: Any, *others: Any) -> Any:
        values = first, second, *others
        return functools.reduce(blocks, values) if any(isinstance(one, Block) for one in values) else choose(values)

    return of_several


IN_KERNELS: dict[str, Any] = {
    "range": _range, "min": _of_several(min, tl.minimum), "max": _of_several(max, tl.maximum), "print": _print,
    "len": len, "list": list, "float": float, "int": int, "isinstance": isinstance, "getattr": getattr,
    "hasattr": hasattr,
}  # fmt: skip
