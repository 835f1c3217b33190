"""What does a Triton kernel compute? Its unchanged text runs here on NumPy, one program after the other, on every machine.

triton, tl = kernels.triton()  # the real modules where CUDA and Triton work, else those of this interpreter

@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n), mask=at < n)

add[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)
report = kernels.checked(add, (triton.cdiv(n, 256),), x, y, out, n, BLOCK=256)

As on the device: types and their promotion, int32 that overflows, `//` and `%` that truncate, float16 and bfloat16 rounded after
each operation, pointers that know no shapes. An access out of bounds is an error at its line, not a wild one. Other than on
the device: float32 products are exact, not TF32; what a compiler alone refuses, such as a loop that changes the type of a
variable, runs here.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import itertools
import math
import numbers
import operator
import os
import random
import textwrap
import types

import numpy as np
import torch

from course_utils.kernels.faults import KernelFault
from course_utils.kernels.triton_memory import Buffer, Launch, Memory, Report, line_of

__all__ = ["checked", "triton"]

_now: Launch | None = None  # the launch that is running
_MOST_ELEMENTS = 1 << 20  # of a block, as in Triton
_OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}
_FORBIDDEN = {
    ast.Break: "break", ast.Continue: "continue", ast.Try: "try", ast.Lambda: "lambda", ast.Raise: "raise",
    ast.DictComp: "a dictionary", ast.Dict: "a dictionary", ast.Yield: "yield", ast.Global: "global", ast.Import: "import",
    ast.ImportFrom: "import", ast.ClassDef: "class", ast.FunctionDef: "a function inside",
}  # fmt: skip


class DType:
    """A type of elements: NumPy computes in `numpy`; `soft` ones, which NumPy lacks, in float32, rounded by torch."""

    def __init__(self, name: str, torch_type: torch.dtype, numpy, short: str, soft=None) -> None:
        self.name, self.torch, self.numpy, self.short, self.soft = name, torch_type, np.dtype(numpy), short, soft
        self.stored = np.dtype(soft or numpy)
        self.bits = self.primitive_bitwidth = 1 if name == "int1" else self.stored.itemsize * 8
        self.kind = {"b": 0, "i": 1, "u": 1, "f": 2}[self.numpy.kind]  # the higher wins over plain numbers
        self.signed = self.numpy.kind == "i"

    scalar = element_ty = property(lambda self: self)
    is_floating = lambda self: self.kind == 2  # noqa: E731
    is_int = lambda self: self.kind < 2  # noqa: E731
    __repr__ = __str__ = lambda self: self.short

    def decode(self, raw: np.ndarray) -> np.ndarray:
        return torch.from_numpy(np.ascontiguousarray(raw)).view(self.torch).to(torch.float32).numpy()

    def encode(self, values: np.ndarray) -> np.ndarray:
        rounded = torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(self.torch)
        return rounded.view(getattr(torch, self.stored.name)).numpy()

    def of(self, values) -> np.ndarray:
        """Return numbers rounded to this type."""
        values = np.asarray(values)
        values = values if values.dtype == self.numpy else values.astype(self.numpy)
        return self.decode(np.atleast_1d(self.encode(values))).reshape(values.shape) if self.soft else values


_TYPES = {
    name: DType(name, getattr(torch, torch_name), numpy, short, soft)
    for name, torch_name, numpy, short, soft in (
        ("int1", "bool", np.bool_, "int1", None),
        *((f"{u}int{n}", f"{u}int{n}", f"{u}int{n}", f"{u}int{n}", None) for u in ("", "u") for n in (8, 16, 32, 64)),
        ("float16", "float16", np.float16, "fp16", None),
        ("float32", "float32", np.float32, "fp32", None),
        ("float64", "float64", np.float64, "fp64", None),
        ("bfloat16", "bfloat16", np.float32, "bf16", np.int16),
        ("float8e4nv", "float8_e4m3fn", np.float32, "fp8e4nv", np.int8),
        ("float8e5", "float8_e5m2", np.float32, "fp8e5", np.int8),
    )
}
_OF_TORCH = {one.torch: one for one in _TYPES.values()}
_BOOL, _I32, _I64, _F32 = (_TYPES[name] for name in ("int1", "int32", "int64", "float32"))


class constexpr:  # noqa: N801: Triton's name
    """Marks a parameter, or a global, that is known when the kernel is compiled."""

    def __init__(self, value) -> None:
        self.value = value


def _binary(name: str, swapped: bool = False):
    return lambda a, b: _combine(name, b, a) if swapped else _combine(name, a, b)


class Block:
    """A block of numbers, or with the shape () one number, of a program."""

    __slots__ = ("data", "dtype")
    __hash__ = None

    def __init__(self, data, dtype: DType) -> None:
        self.data, self.dtype = dtype.of(data), dtype
        if self.data.size > _MOST_ELEMENTS:
            raise _wrong(f"a block has {self.data.size:,} elements, and Triton allows {_MOST_ELEMENTS:,}", "shapes")
        if dtype.kind == 2 and _now is not None:
            _now.report.flops += self.data.size

    shape = property(lambda self: self.data.shape)
    numel = property(lambda self: self.data.size)
    type = property(lambda self: self.dtype)
    T = property(lambda self: trans(self))

    def __getattr__(self, name: str):
        if name in _METHODS:
            return lambda *args, **options: getattr(tl, name)(self, *args, **options)
        raise AttributeError(f"a block has no {name!r}")

    def to(self, dtype: DType, fp_downcast_rounding=None, bitcast: bool = False) -> Block:
        if bitcast:
            data = self.dtype.encode(self.data) if self.dtype.soft else self.data
            data = data.view(dtype.stored)
            return _same(dtype.decode(data) if dtype.soft else data, dtype)
        if dtype.is_int() and self.dtype.is_floating() and dtype is not _BOOL:
            return _same(np.nan_to_num(np.trunc(self.data.astype(np.float64))).astype(np.int64), dtype)
        return _same(self.data, dtype)

    def __getitem__(self, key) -> Block:
        return _same(self.data[_key(key)], self.dtype)

    def __bool__(self) -> bool:
        if self.data.size != 1:
            raise _wrong(
                "`if`, `while`, `and` and `or` need one number, and this is a block: use tl.where or &, |", "shapes"
            )
        if _now is not None:
            _now.turn()
        return bool(self.data)

    def __index__(self) -> int:
        if self.data.size != 1 or self.dtype.kind == 2:
            raise TypeError(f"a whole number is needed here, and this is a block of {self.dtype}")
        return int(self.data)

    def __neg__(self) -> Block:
        return Block(-self.data, self.dtype)

    def __invert__(self) -> Block:
        return _same(~self.data, self.dtype)

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)}: {self.data}"

    for _name in ("+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>"):
        _method = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "&": "and", "|": "or",
                   "^": "xor", "<<": "lshift", ">>": "rshift"}[_name]  # fmt: skip
        locals()[f"__{_method}__"], locals()[f"__r{_method}__"] = _binary(_name), _binary(_name, swapped=True)
    for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
        locals()[f"__{_name}__"] = _binary(_name)


class Pointer:
    """Addresses in the memory of an argument, counted in its elements; `dtype.element_ty` is their type."""

    __hash__ = None

    def __init__(self, buffer: Buffer, data) -> None:
        self.buffer, self.data = buffer, np.asarray(data, np.int64)
        self.dtype = self.type = types.SimpleNamespace(element_ty=buffer.dtype, scalar=buffer.dtype)
        self.dtype.scalar = self.dtype

    shape = property(lambda self: self.data.shape)

    def __add__(self, other) -> Pointer:
        return self._moved(other, 1)

    __radd__ = __add__

    def __sub__(self, other) -> Pointer:
        return self._moved(other, -1)

    def __getitem__(self, key) -> Pointer:
        return Pointer(self.buffer, self.data[_key(key)])

    def _moved(self, other, sign: int) -> Pointer:
        other = _block(other, f"what is added to the pointer {self.buffer.name}")
        if other.dtype.kind == 2:
            raise _wrong(f"the pointer {self.buffer.name} is moved by {other.dtype}; it can be moved by whole numbers")
        return Pointer(self.buffer, _shaped(lambda: self.data + sign * other.data.astype(np.int64), self, other))

    def _refuse(self, *_):
        raise _wrong(f"{self.buffer.name} is a pointer, not its values: load them with tl.load({self.buffer.name} + …)")

    __mul__ = __rmul__ = __truediv__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __bool__ = to = _refuse


def _same(data, dtype: DType) -> Block:
    """Return a block that is only moved or converted: no arithmetic is counted."""
    flops = _now.report.flops if _now is not None else 0
    block = Block(data, dtype)
    if _now is not None:
        _now.report.flops = flops
    return block


def _wrong(what: str, kind: str = "arguments") -> KernelFault:
    return _now.fault(kind, what) if _now is not None else KernelFault(kind, what)


def _block(value, what: str = "this") -> Block:
    """Return a number of Python as a block of the type that Triton gives it, and a block as it is."""
    if isinstance(value, Block):
        return value
    value = getattr(value, "value", value)
    if isinstance(value, Pointer):
        value._refuse()
    if isinstance(value, bool | np.bool_):
        return _same(value, _BOOL)
    if isinstance(value, numbers.Integral):
        name = next((n for n in ("int32", "uint32", "int64", "uint64") if value in _RANGES[n]), None)
        if name is None:
            raise _wrong(f"{value} does not fit into 64 bits")
        return _same(int(value), _TYPES[name])
    if isinstance(value, numbers.Real):
        return _same(float(value), _F32)
    raise _wrong(f"{what} is a {type(value).__name__}: a kernel computes with blocks and numbers")


_RANGES = {name: range(np.iinfo(name).min, np.iinfo(name).max + 1) for name in ("int32", "uint32", "int64", "uint64")}


def _promote(a: DType, a_plain: bool, b: DType, b_plain: bool, divides: bool = False) -> DType:
    """Return the type in which Triton computes with both; a plain number gives way to a block of its kind or higher."""
    if a_plain != b_plain:
        plain, other = (a, b) if a_plain else (b, a)
        if plain.kind <= other.kind:
            a = b = other
    floats = [one for one in (a, b) if one.kind == 2]
    if not floats:
        if a.signed == b.signed:
            return a if a.bits > b.bits else b
        unsigned, signed = (b, a) if a.signed else (a, b)
        return unsigned if unsigned.bits >= signed.bits else signed
    names = {one.name for one in floats}
    if "float64" in names:
        return _TYPES["float64"]
    if divides or "float32" in names:
        return _F32
    if "float16" in names:
        return _TYPES["float16"]
    if len(names) == 1 and (len(floats) == 2 or "bfloat16" not in names):
        return floats[0]
    return _F32 if "bfloat16" in names else _TYPES["float16"]


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide whole numbers as C does, towards zero."""
    quotient = a // b
    return quotient + ((np.fmod(a, b) != 0) & ((a < 0) != (b < 0))).astype(quotient.dtype)


_OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": _truncated, "%": np.fmod,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "maximum": np.fmax, "minimum": np.fmin,
}  # fmt: skip


def _shaped(compute, *parts):
    """Compute with several blocks; say the shapes where they do not fit."""
    try:
        return compute()
    except ValueError:
        shapes = " and ".join(str(tuple(part.shape)) for part in parts)
        raise _wrong(
            f"blocks of the shapes {shapes} do not go together; [:, None] and [None, :] add an axis", "shapes"
        ) from None


def _combine(name: str, a, b) -> Block:
    if isinstance(b, Pointer):
        return b + a if name == "+" else b._refuse()
    if name in ("eq", "ne") and (a is None or b is None):
        return name == "ne"
    plain = not isinstance(a, Block), not isinstance(b, Block)
    a, b = _block(a, "the left side"), _block(b, "the right side")
    dtype = _promote(a.dtype, plain[0], b.dtype, plain[1], name in ("/", "%"))
    if name == "/" and dtype.kind < 2:
        dtype = _F32
    if name in ("//", "&", "|", "^", "<<", ">>") and dtype.kind == 2:
        raise _wrong(f"{name} is for whole numbers, and here are {a.dtype} and {b.dtype}")
    x, y = dtype.of(a.data), dtype.of(b.data)
    data = _shaped(lambda: _OPERATORS[name](x, y), a, b)
    return _same(data, _BOOL) if name in ("lt", "le", "gt", "ge", "eq", "ne") else Block(data, dtype)


def _key(key):
    for one in key if isinstance(key, tuple) else (key,):
        if one is not None and one is not Ellipsis and one != slice(None):
            raise _wrong(
                "a block takes only `:` and `None` in brackets; elements are picked by pointers or tl.where", "shapes"
            )
    return key


def _shape(shape) -> tuple[int, ...]:
    """Return a shape, which must be known when the kernel is compiled, in powers of two."""
    if len(shape) == 1 and isinstance(shape[0], tuple | list | torch.Size):
        shape = shape[0]
    sizes = tuple(getattr(n, "value", n) for n in shape)
    for n in sizes:
        _constant(n, "a size in a shape")
        if n < 1 or n & (n - 1):
            raise _wrong(f"the shape {sizes} is not of powers of two", "shapes")
    return sizes


def _constant(value, what: str):
    if isinstance(value, Block):
        raise _wrong(f"{what} must be known when the kernel is compiled: annotate the parameter with tl.constexpr")
    return getattr(value, "value", value)


# ---- what the kernel calls -------------------------------------------------------------------------------------------


def _program_id(axis: int) -> Block:
    return _same(_now.program[_constant(axis, "the axis")], _I32)


def arange(start: int, end: int) -> Block:
    start, end = _constant(start, "the start of tl.arange"), _constant(end, "the end of tl.arange")
    if end - start < 1 or (end - start) & (end - start - 1):
        raise _wrong(f"the range of tl.arange must be a power of two, and it is {end - start}", "shapes")
    return _same(np.arange(start, end), _I32)


def full(shape, value, dtype: DType) -> Block:
    shape = _shape(shape if isinstance(shape, tuple | list) else (shape,))
    return _same(np.broadcast_to(_block(value).to(dtype).data, shape), dtype)


def _access(kind: str, pointer, mask) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return the shape's offsets, the mask and which elements are wanted, all checked."""
    if not isinstance(pointer, Pointer):
        name = {"load": "tl.load", "store": "tl.store"}.get(kind, "an atomic operation")
        raise _wrong(f"{name} takes a pointer, such as x_ptr + at, and this is a {type(pointer).__name__.lower()}")
    offsets, active = pointer.data, None
    if mask is not None:
        mask = _block(mask, "the mask")
        if mask.dtype is not _BOOL:
            raise _wrong(f"a mask says yes or no for each element, and this one holds {mask.dtype}")
        if mask.data.ndim and not offsets.ndim:
            raise _wrong("the mask is a block, and the pointer is to one element", "shapes")
        offsets, active = _shaped(lambda: np.broadcast_arrays(offsets, mask.data), pointer, mask)
    return offsets, active, _now.touch(kind, pointer.buffer, offsets, active)


def load(pointer, mask=None, other=None, cache_modifier="", eviction_policy="",
         volatile=False) -> Block:  # fmt: skip
    offsets, active, at = _access("load", pointer, mask)
    buffer = pointer.buffer
    if active is None:
        return _same(buffer.read(offsets), buffer.dtype)
    if other is None:
        found = _poison(offsets.shape, buffer.dtype)
        if _now.undefined is None and not active.all():
            what = f"program {_now._name()} loads {buffer.name} with a mask and without `other`"
            why = "the elements that the mask leaves out have no value, and the result depends on them"
            _now.undefined = _now.fault("undefined", what, why, array=buffer.name)
    else:
        other = _block(other, "other")
        found = np.array(_shaped(lambda: np.broadcast_to(other.to(buffer.dtype).data, offsets.shape), pointer, other))
    found[active] = buffer.read(at)
    return _same(found, buffer.dtype)


def _poison(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return values that show: a GPU promises none. NaN, or in a second run numbers of both signs."""
    if dtype.kind == 2 and _now.poison == 0:
        return np.full(shape, math.nan, dtype.numpy)
    large = 100 + 19 * _now.poison
    return np.resize(np.array([large, -large]), shape).astype(dtype.numpy)


def store(pointer, value, mask=None, cache_modifier="", eviction_policy="") -> None:
    offsets, active, at = _access("store", pointer, mask)
    data = _stored(pointer, value, offsets)
    data = data.reshape(-1) if active is None else data[active]
    at = at.reshape(-1)
    if _now.watched and at.size > 1:
        _one_value_each(pointer.buffer, at, data)
    pointer.buffer.write(at, data)


def _stored(pointer: Pointer, value, offsets: np.ndarray) -> np.ndarray:
    """Return the values to store, one for each address, in the type of the memory."""
    value = _block(value, "the value")
    if value.data.ndim and not pointer.data.ndim:
        raise _wrong(f"a block of the shape {value.shape} is stored through a pointer to one element", "shapes")
    return _shaped(lambda: np.broadcast_to(value.to(pointer.buffer.dtype).data, offsets.shape), value, pointer)


def _one_value_each(buffer: Buffer, at: np.ndarray, data: np.ndarray) -> None:
    order = np.argsort(at, kind="stable")
    at, data = at[order], data[order]
    clash = (at[1:] == at[:-1]) & (data[1:] != data[:-1])
    if clash.any():
        element = int(at[1:][clash][0])
        what = f"program {_now._name()} writes different values to element {element:,} of {buffer.name} in one store"
        raise _now.fault("race", what, "which of them stays is not defined", array=buffer.name, element=element)


def _atomic(change):
    def atomic(pointer, value, mask=None, sem=None, scope=None) -> Block:
        return _exchange(pointer, mask, lambda old, new: change(old, new), value)

    return atomic


def _cas(pointer, cmp, val, sem=None, scope=None) -> Block:
    wanted = _stored(pointer, cmp, pointer.data)
    return _exchange(pointer, None, lambda old, new: np.where(old == wanted.reshape(np.shape(old)), new, old), val)


def _exchange(pointer, mask, change, value) -> Block:
    """Change elements one after the other, and return what they were before."""
    offsets, active, at = _access("atomic", pointer, mask)
    buffer, data = pointer.buffer, _stored(pointer, value, offsets)
    new, before = (data.reshape(-1) if active is None else data[active]), np.zeros(at.size, buffer.dtype.numpy)
    at = at.reshape(-1)
    if np.unique(at).size == at.size:
        before[:] = buffer.read(at)
        buffer.write(at, np.asarray(change(before, new)).astype(buffer.dtype.numpy))
    else:
        for place in range(at.size):
            one = at[place : place + 1]
            before[place : place + 1] = old = buffer.read(one)
            buffer.write(one, np.asarray(change(old, new[place : place + 1])).astype(buffer.dtype.numpy))
    if buffer.dtype.kind == 2:
        _now.report.flops += at.size
    found = np.zeros(offsets.shape, buffer.dtype.numpy)
    found[... if active is None else active] = before.reshape(offsets.shape) if active is None else before
    return _same(found, buffer.dtype)


def _function(name: str, compute, types_: tuple[str, ...] = ("fp32", "fp64")):
    def function(x) -> Block:
        x = _block(x)
        if types_ and x.dtype.short not in types_:
            raise _wrong(f"tl.{name} takes fp32 or fp64, and this is {x.dtype}: write .to(tl.float32)")
        return Block(compute(x.data), x.dtype)

    return function


def _extreme(name: str):
    def extreme(x, y, propagate_nan=None) -> Block:
        found = _combine(name, x, y)
        return found.to(_F32) if found.dtype.name == "bfloat16" else found

    return extreme


def _where(condition, x, y) -> Block:
    plain = not isinstance(x, Block), not isinstance(y, Block)
    condition, x, y = _block(condition), _block(x), _block(y)
    dtype = _promote(x.dtype, plain[0], y.dtype, plain[1])
    return _same(
        _shaped(lambda: np.where(condition.data.astype(bool), dtype.of(x.data), dtype.of(y.data)), condition, x, y),
        dtype,
    )


def _axis(x: Block, axis) -> int | None:
    axis = _constant(axis, "the axis")
    if axis is not None and not -x.data.ndim <= axis < x.data.ndim:
        raise _wrong(f"the axis {axis} does not exist in a block of the shape {x.shape}", "shapes")
    return axis


def _reduction(compute, widened: bool):
    def reduction(x, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False, dtype=None):
        x = _block(x)
        if dtype is not None:
            x = x.to(dtype)
        elif x.dtype.bits < 32 and (widened or x.dtype.kind < 2):  # as Triton does
            x = x.to(_F32 if x.dtype.kind == 2 else _TYPES["int32" if x.dtype.signed or x.dtype is _BOOL else "uint32"])
        axis = _axis(x, axis)
        found = compute.reduce(x.data, axis=axis, keepdims=keep_dims, dtype=x.dtype.numpy)
        if x.dtype.kind == 2:
            _now.report.flops += x.data.size
        if return_indices:
            return _same(found, x.dtype), _where_extreme(compute)(x, axis, keep_dims=keep_dims)
        return _same(found, x.dtype)

    return reduction


def _sum(x, axis=None, keep_dims=False, dtype=None) -> Block:
    return _add_up(x, axis, keep_dims=keep_dims, dtype=dtype)


_add_up = _reduction(np.add, widened=False)


def _where_extreme(compute):
    find = np.nanargmax if compute is np.fmax else np.nanargmin

    def place(x, axis, tie_break_left=True, keep_dims=False) -> Block:
        data = (
            np.where(np.isnan(x.data), -np.inf if compute is np.fmax else np.inf, x.data)
            if x.dtype.kind == 2
            else x.data
        )
        return _same(find(data, axis=_axis(x, axis), keepdims=keep_dims), _I32)

    return place


def _scan(compute):
    def scan(x, axis=0, reverse=False, dtype=None) -> Block:
        x = _block(x) if dtype is None else _block(x).to(dtype)
        axis = _axis(x, axis)
        data = np.flip(x.data, axis) if reverse else x.data
        found = compute.accumulate(data, axis=axis, dtype=x.dtype.numpy)
        return Block(np.flip(found, axis) if reverse else found, x.dtype)

    return scan


def dot(
    input, other, acc=None, input_precision=None, allow_tf32=None, max_num_imprecise_acc=None, out_dtype=_F32
) -> Block:
    for one in (input, other):
        if not isinstance(one, Block) or one.data.ndim not in (2, 3):
            raise _wrong("tl.dot takes two blocks of two axes", "shapes")
    a, b = input, other
    if a.dtype is not b.dtype:
        raise _wrong(f"tl.dot takes two blocks of one type, and these are {a.dtype} and {b.dtype}")
    if a.shape[-1] != b.shape[-2]:
        raise _wrong(f"tl.dot of the shapes {a.shape} and {b.shape}: the inner sizes differ", "shapes")
    if a.shape[-1] < 16:
        raise _wrong(f"tl.dot needs at least 16 elements along the inner axis, and here are {a.shape[-1]}", "shapes")
    dtype = _I32 if a.dtype.kind < 2 else a.dtype if a.dtype.name == "float64" else out_dtype
    wide = np.int32 if a.dtype.kind < 2 else np.promote_types(a.dtype.numpy, np.float32)
    data = a.data.astype(wide) @ b.data.astype(wide)
    _now.report.flops += 2 * math.prod(a.shape) * b.shape[-1]
    if acc is None:
        return _same(data, dtype)
    if acc.shape != data.shape or acc.dtype is not dtype:
        raise _wrong(
            f"the accumulator is {acc.dtype}{list(acc.shape)}, and the product {dtype}{list(data.shape)}", "shapes"
        )
    return _same(data + acc.data, dtype)


def trans(x, *dims) -> Block:
    dims = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims
    return _same(np.transpose(x.data, dims) if dims else x.data.swapaxes(-1, -2), x.dtype)


def reshape(x, *shape, can_reorder=False) -> Block:
    return _same(_shaped(lambda: x.data.reshape(_shape(shape)), x), x.dtype)


def broadcast_to(x, *shape) -> Block:
    return _same(_shaped(lambda: np.broadcast_to(x.data, _shape(shape)), x), x.dtype)


def _range(*bounds, num_stages=None, **options):
    """Count as `range` in a kernel does, where the number is one of the device, not of Python."""
    found = [_block(one, "a bound of range") for one in bounds]
    dtype = _I64 if any(one.dtype.bits == 64 for one in found) else _I32
    for number in builtins.range(*(operator.index(one) for one in found)):
        _now.turn()
        yield _same(number, dtype)


def _static_range(*bounds):
    return builtins.range(*(_constant(one, "a bound of tl.static_range") for one in bounds))


def _static_assert(condition, message="") -> None:
    if not condition:
        raise _wrong(f"tl.static_assert failed: {message}", "assert")


def _device_assert(condition, message="", mask=None) -> None:
    holds = _block(condition).data.astype(bool) | (False if mask is None else ~_block(mask).data)
    if not holds.all():
        raise _wrong(f"tl.device_assert failed in program {_now._name()}: {message}", "assert")


def _print(prefix, *values, **options) -> None:
    print(f"program {_now.program}: {prefix}", *values)


def _erf(x: np.ndarray) -> np.ndarray:
    return torch.erf(torch.from_numpy(np.array(x))).numpy()


def _same_value(x, *_, **options):
    return x


def cdiv(x, y):
    """Return x / y, rounded up."""
    return (x + y - 1) // y


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is not below `n`."""
    return 1 << max(n - 1, 0).bit_length()


_MATH = {
    name: _function(name, compute)
    for name, compute in {
        "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt, "sqrt_rn": np.sqrt, "sin": np.sin,
        "cos": np.cos, "floor": np.floor, "ceil": np.ceil, "erf": _erf, "rsqrt": lambda x: 1 / np.sqrt(x),
    }.items()
}  # fmt: skip
_MATH |= {
    "abs": _function("abs", np.abs, ()),
    "fdiv": lambda x, y, ieee_rounding=False: x / y,
    "div_rn": lambda x, y: x / y,
    "fma": lambda x, y, z: x * y + z,
}
_LIBDEVICE = {
    name: _function(name, compute)
    for name, compute in {"tanh": np.tanh, "expm1": np.expm1, "log1p": np.log1p, "tan": np.tan, "rint": np.rint}.items()
}
_LIBDEVICE |= {**_MATH, "pow": lambda x, y: Block(np.power(_block(x).data, _block(y).data), _block(x).dtype)}
_BLOCKS = {
    "max": _reduction(np.fmax, widened=True),
    "min": _reduction(np.fmin, widened=True),
    "sum": _sum,
    "argmax": _where_extreme(np.fmax),
    "argmin": _where_extreme(np.fmin),
    "cumsum": _scan(np.add),
    "cumprod": _scan(np.multiply),
    "trans": trans,
    "permute": trans,
    "reshape": reshape,
    "view": reshape,
    "ravel": lambda x: reshape(x, x.numel),
    "expand_dims": lambda x, axis: _same(np.expand_dims(x.data, axis), x.dtype),
    "broadcast_to": broadcast_to,
    "sigmoid": lambda x: 1 / (1 + _MATH["exp"](-x)),
    "softmax": lambda x, dim=0, **_: (lambda e: e / _sum(e, dim, keep_dims=True))(
        _MATH["exp"](x - _BLOCKS["max"](x, dim, keep_dims=True))
    ),
}
_METHODS = {*_BLOCKS, *_MATH}
tl = types.SimpleNamespace(
    **_TYPES, **_MATH, **_BLOCKS,
    constexpr=constexpr, tensor=Block, dtype=DType, void=None,
    math=types.SimpleNamespace(**_MATH),
    extra=types.SimpleNamespace(libdevice=types.SimpleNamespace(**_LIBDEVICE)),
    program_id=_program_id,
    num_programs=lambda axis: _same(_now.grid[_constant(axis, "the axis")], _I32),
    arange=arange, full=full,
    zeros=lambda shape, dtype: full(shape, 0, dtype),
    zeros_like=lambda x: full(x.shape, 0, x.dtype),
    cast=lambda x, dtype, bitcast=False: _block(x).to(dtype, bitcast=bitcast),
    load=load, store=store,
    atomic_add=_atomic(operator.add), atomic_max=_atomic(np.fmax), atomic_min=_atomic(np.fmin),
    atomic_and=_atomic(operator.and_), atomic_or=_atomic(operator.or_), atomic_xor=_atomic(operator.xor),
    atomic_xchg=_atomic(lambda old, new: new), atomic_cas=_cas,
    where=_where, maximum=_extreme("maximum"), minimum=_extreme("minimum"),
    clamp=lambda x, low, high: tl.minimum(tl.maximum(x, low), high),
    dot=dot, cdiv=cdiv, next_power_of_2=next_power_of_2, range=_range, static_range=_static_range,
    static_assert=_static_assert, device_assert=_device_assert, static_print=print, device_print=_print,
    multiple_of=_same_value, max_contiguous=_same_value, max_constancy=_same_value,
    assume=_same_value, debug_barrier=lambda: None,
)  # fmt: skip
_IN_KERNELS = {**vars(builtins), "range": _range, "min": tl.minimum, "max": tl.maximum, "print": _print}


# ---- how a kernel is started -----------------------------------------------------------------------------------------


class Config:
    """One way to launch a kernel that `autotune` may try."""

    def __init__(self, kwargs: dict, num_warps: int = 4, num_stages: int = 3, **options) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages


class Kernel:
    """A function in Triton's language: `kernel[grid](…)` launches it, another kernel calls it."""

    def __init__(self, fn, configs: tuple[Config, ...] = (), heuristics: tuple[dict, ...] = ()) -> None:
        self.fn, self.configs, self.heuristics = fn, configs, heuristics
        self.__name__, self.__doc__, self.__module__ = fn.__name__, fn.__doc__, fn.__module__
        self.signature = inspect.signature(fn)
        self.arg_names = list(self.signature.parameters)
        self.constants = {n for n, one in self.signature.parameters.items() if "constexpr" in str(one.annotation)}

    def __getitem__(self, grid):
        return lambda *args, **options: _start(self, grid, args, options)

    def __call__(self, *args, **options):
        if _now is None:
            raise RuntimeError(f"a kernel is launched with a grid: {self.__name__}[(programs,)](…)")
        return _bound(self)(*args, **options)


def _ours(value, name: str):
    """Return what stands for a global value of a kernel here: Triton's own objects have a twin in this interpreter."""
    home = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    if isinstance(value, types.ModuleType):
        home = value.__name__
        if home == "triton":
            return _interpreter
        if home.startswith("triton.language"):
            return tl.extra.libdevice if home.endswith("libdevice") else tl.math if home.endswith("math") else tl
    elif type(value).__name__ == "constexpr":
        return value.value
    elif (
        home.startswith("triton.") and inspect.isfunction(getattr(value, "fn", None)) and not isinstance(value, Kernel)
    ):
        return getattr(tl, value.fn.__name__, None) or kernel_of(value)
    elif home.startswith("triton.language"):
        return getattr(tl, getattr(value, "__name__", "") or getattr(value, "name", ""), value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        raise _wrong(
            f"{name} is a global number, which a kernel may not read: pass it as a parameter with tl.constexpr"
        )
    return value


def kernel_of(function) -> Kernel:
    """Return a kernel, ours or one of the installed Triton, as one of this interpreter."""
    configs, heuristics = (), ()
    while not isinstance(function, Kernel):
        configs = configs or tuple(getattr(function, "configs", ()))
        values = getattr(function, "values", None)
        heuristics += (values,) if isinstance(values, dict) else ()
        if not hasattr(function, "fn"):
            raise TypeError(f"a kernel is a function under @triton.jit, and this is a {type(function).__name__}")
        if inspect.isfunction(function.fn):
            return Kernel(function.fn, configs, heuristics)
        function = function.fn
    return function


def _bound(kernel: Kernel):
    """Return the kernel's function as it runs here: Python's `range`, `min` and others are Triton's in it."""
    found = _now.bound.get(id(kernel))
    if found is None:
        fn = kernel.fn
        _now.codes.add(fn.__code__)
        _check_text(fn)
        values = {n: _ours(fn.__globals__[n], n) for n in fn.__code__.co_names if n in fn.__globals__}
        cells = inspect.getclosurevars(fn).nonlocals
        cells = tuple(types.CellType(_ours(cells[n], n)) for n in fn.__code__.co_freevars)
        values["__builtins__"] = _IN_KERNELS
        found = types.FunctionType(fn.__code__, values, fn.__name__, fn.__defaults__, cells)
        found.__kwdefaults__ = fn.__kwdefaults__
        _now.bound[id(kernel)] = found
    return found


def _check_text(fn) -> None:
    """Refuse what Triton's compiler does not know, at its line."""
    try:
        lines, first = inspect.getsourcelines(fn)
        function = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError):  # typed where no source is kept
        return
    for node in (node for statement in function.body for node in ast.walk(statement)):
        if type(node) in _FORBIDDEN:
            line = line_of(fn.__code__.co_filename, first + node.lineno - 1)
            raise KernelFault("language", f"Triton's language has no `{_FORBIDDEN[type(node)]}` in a kernel", line)


def _prepared(kernel: Kernel, grid, args, options, config: Config | None) -> tuple[tuple[int, int, int], dict]:
    """Return the grid and the arguments by name, checked."""
    options = {**(config.kwargs if config else {}), **options}
    warps = options.get("num_warps", 4)
    if not isinstance(warps, int) or warps < 1 or warps & (warps - 1):
        raise KernelFault("arguments", f"num_warps must be a power of two, and it is {warps}")
    options = {name: value for name, value in options.items() if name not in _OPTIONS or name in kernel.arg_names}
    try:
        for name, rule in itertools.chain.from_iterable(rules.items() for rules in kernel.heuristics):
            options[name] = rule({**kernel.signature.bind_partial(*args, **options).arguments})
        bound = kernel.signature.bind(*args, **options)
    except TypeError as error:
        raise KernelFault("arguments", f"{kernel.__name__}: {error}") from None
    bound.apply_defaults()
    named = dict(bound.arguments)
    grid = grid(named) if callable(grid) else grid
    if not isinstance(grid, tuple | list) or not 1 <= len(grid) <= 3:
        raise KernelFault(
            "arguments", f"the grid is {grid!r}; it must be a tuple of one to three numbers, such as (n,)"
        )
    for n in grid:
        if not isinstance(n, numbers.Integral) or n < 1:
            raise KernelFault("arguments", f"the grid {tuple(grid)} must hold whole numbers above 0: use triton.cdiv")
    return (*map(int, grid), 1, 1)[:3], named


def _as_arguments(kernel: Kernel, named: dict, memory: Memory) -> dict:
    """Return the arguments as the kernel sees them: tensors as pointers, numbers as numbers of the device."""
    found, devices = {}, {}
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            if name in kernel.constants:
                raise KernelFault("arguments", f"{name} is tl.constexpr, and a tensor was passed")
            devices.setdefault(str(value.device), name)
            if value.dtype not in _OF_TORCH or value.layout is not torch.strided:
                raise KernelFault("arguments", f"{name} is a tensor of {value.dtype}, which Triton does not have")
            found[name] = Pointer(Buffer(name, value, _OF_TORCH[value.dtype], memory), 0)
        elif name in kernel.constants or value is None:
            found[name] = getattr(value, "value", value)
        elif isinstance(value, numbers.Real):
            found[name] = _block(value)
        else:
            raise KernelFault("arguments", f"{name} is a {type(value).__name__}; a kernel takes tensors and numbers")
    if len(devices) > 1:
        places = " and ".join(f"{name} on {device}" for device, name in devices.items())
        raise KernelFault("arguments", f"the tensors of a launch must be on one device, and there are {places}")
    return found


def _run(kernel: Kernel, grid, arguments: dict, watched: bool, seed: int | None) -> Launch:
    """Run all programs, in order, or shuffled. The launch's report holds the fault that ended it, if it is watched."""
    global _now
    before, launch = _now, Launch(grid, watched, poison=seed or 0)
    programs = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    if seed is not None:
        random.Random(seed).shuffle(programs)
    _now = launch
    try:
        with np.errstate(all="ignore"):
            function = _bound(kernel)
            for program in programs:
                launch.start(program)
                function(**arguments)
    except Exception as error:
        if not watched:
            raise
        launch.report.fault = error if isinstance(error, KernelFault) else _fault_of(error, launch)
    finally:
        _now = before
        launch.close()
    return launch


def _fault_of(error: Exception, launch: Launch) -> KernelFault:
    """Return an error of Python in the kernel as a fault at the kernel's line."""
    line, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in launch.codes:
            line = line_of(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    fault = KernelFault("error", f"{type(error).__name__}: {error}", line, where=launch.program)
    fault.__cause__ = error
    return fault


def _start(kernel: Kernel, grid, args, options) -> None:
    """Launch a kernel: programs run in the order of their numbers, and change the tensors."""
    grid, named = _prepared(kernel, grid, args, options, next(iter(kernel.configs), None))
    memory = Memory(copy=False)
    _run(kernel, grid, _as_arguments(kernel, named, memory), watched=False, seed=None)
    memory.write_back()


def checked(kernel, grid, *args, **options) -> Report:
    """Run a kernel twice on copies of the tensors, programs in order and shuffled, and return what it did.

    `kernel` may be one of this interpreter or of the installed Triton. The arguments stay as they are: what the kernel
    would leave in them is in `report.results`. What is wrong is in `report.fault`, at the reader's line: the first
    access out of bounds, a race (two programs touch an element that one of them writes, or the result depends on their
    order), a result that depends on elements that a mask left out ("undefined"), a loop without an end, an error of
    Python. With `@triton.autotune` all configurations run; the report is the first's, or that of the first with a fault.
    Nothing is raised but TypeError where `kernel` is none.
    """
    kernel, first = kernel_of(kernel), None
    for config in kernel.configs or (None,):
        try:
            report = _twice(kernel, *_prepared(kernel, grid, args, options, config))
        except KernelFault as fault:
            report = Report(fault)
        first = first or report
        if report.fault is not None:
            return report
    return first


def _twice(kernel: Kernel, grid, named: dict) -> Report:
    runs = []
    for seed in (None, 1):  # in order, and shuffled
        arguments = _as_arguments(kernel, named, Memory(copy=True))
        launch = _run(kernel, grid, arguments, watched=True, seed=seed)
        buffers = [one.buffer for one in arguments.values() if isinstance(one, Pointer)]
        launch.report.results = {one.name: one.tensor for one in buffers}
        runs.append((launch, buffers))
        if launch.report.fault is not None:
            return launch.report
    (launch, buffers), (_, again) = runs
    for one, other in zip(buffers, again, strict=True):
        element = _differs(one.array, other.array, one.dtype, launch.atomics)
        if element is not None:
            launch.report.fault = launch.undefined or KernelFault(
                "race", f"element {element:,} of {one.name} depends on the order in which the programs run",
                array=one.name, element=element,
            )  # fmt: skip
            break
    return launch.report


def _differs(a: np.ndarray, b: np.ndarray, dtype: DType, atomics: bool) -> int | None:
    """Return the first element that differs; sums by atomic operations may, by rounding."""
    if dtype.soft:
        a, b = dtype.decode(a), dtype.decode(b)
    if dtype.kind < 2:
        same = a == b
    else:
        same = np.isclose(a.astype(np.float64), b.astype(np.float64), 1e-2 * atomics, 1e-3 * atomics, equal_nan=True)
    return None if same.all() else int(np.argmin(same))


def _jit(fn=None, **options):
    return Kernel(fn) if fn is not None else Kernel


def _autotune(configs, key=(), **options):
    return lambda kernel: Kernel(kernel.fn, tuple(configs), kernel.heuristics)


def _heuristics(values: dict):
    return lambda kernel: Kernel(kernel.fn, kernel.configs, (values, *kernel.heuristics))


_interpreter = types.SimpleNamespace(
    jit=_jit,
    autotune=_autotune,
    heuristics=_heuristics,
    Config=Config,
    cdiv=cdiv,
    next_power_of_2=next_power_of_2,
    language=tl,
)


def triton(interpreter: bool = False) -> tuple[types.ModuleType, types.ModuleType]:
    """Return `triton` and `triton.language`: the installed ones where CUDA works, else those of this interpreter.

    With `interpreter=True`, or where COURSE_DEVICE names another device than CUDA, always those of this interpreter.
    """
    wanted = os.environ.get("COURSE_DEVICE") or "cuda"
    if not interpreter and wanted == "cuda" and torch.cuda.is_available() and importlib.util.find_spec("triton"):
        import triton as real
        import triton.language as language

        return real, language
    return _interpreter, tl
