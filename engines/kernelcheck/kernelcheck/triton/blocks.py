"""Blocks of numbers with Triton's types, pointers and device arithmetic."""

from __future__ import annotations

import functools
import math
import numbers
import operator
import types
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch

from kernelcheck.triton.memory import Buffer, running, wrong
from kernelcheck.triton.text import COMPARISONS

_MOST_ELEMENTS = 1 << 20  # of a block, as in Triton


class DType:
    """A type of elements: NumPy computes in `numpy`; `soft` ones, which NumPy lacks, in float32, rounded by torch."""

    def __init__(self, name: str, torch_type: torch.dtype, numpy: str, short: str, soft: str | None = None) -> None:
        self.name, self.torch, self.numpy, self.short, self.soft = name, torch_type, np.dtype(numpy), short, soft
        self.stored = np.dtype(soft or numpy)
        self.bits = self.primitive_bitwidth = 1 if name == "int1" else self.stored.itemsize * 8
        self.kind = {"b": 0, "i": 1, "u": 1, "f": 2}[self.numpy.kind]  # the higher wins over a plain number
        self.signed = self.numpy.kind == "i"
        self.int_bitwidth = self.bits

    scalar = element_ty = property(lambda self: self)

    def __repr__(self) -> str:
        return self.short

    def __call__(self, *_: Any) -> Block:
        """Raise with the way to make a number of this type."""
        raise wrong(f"tl.{self.name} is a type and no function: write tl.full((), value, tl.{self.name})")

    def is_floating(self) -> bool:
        return self.kind == 2

    def is_int(self) -> bool:
        return self.kind < 2

    def is_int_signed(self) -> bool:
        return self.signed

    def is_int_unsigned(self) -> bool:
        return self.is_int() and not self.signed

    def __getattr__(self, name: str) -> Callable[[], bool]:
        """Return a predicate for one type, as in `dtype.is_fp16()`."""
        of_type = {"is_bool": ("int1",), "is_fp8": ("fp8e4nv", "fp8e5")}
        asked = of_type.get(name, (name[len("is_") :],))
        if not name.startswith("is_") or not any(one.short in asked for one in TYPES.values()):
            raise AttributeError(f"a type of Triton's has no {name!r}")
        return lambda: self.short in asked

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """Return the stored numbers in a type with which NumPy computes."""
        return torch.from_numpy(np.array(raw)).view(self.torch).float().numpy() if self.soft else raw

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return numbers as they lie in memory."""
        if not self.soft:
            return values
        rounded = torch.from_numpy(np.array(values, np.float32)).to(self.torch)
        return rounded.view(getattr(torch, self.soft)).numpy()

    def of(self, values: Any) -> np.ndarray:
        """Return numbers converted to this type."""
        values = np.asarray(values)
        if self.kind == 1 and values.dtype.kind == "f":  # towards zero, and numbers that do not fit around the clock
            values = np.nan_to_num(values.astype(np.float64)).astype(np.int64)
        values = values if values.dtype == self.numpy else values.astype(self.numpy)
        return self.decode(np.atleast_1d(self.encode(values))).reshape(values.shape) if self.soft else values


TYPES = {"int1": DType("int1", torch.bool, "bool", "int1")}
for _name in (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)):
    TYPES[_name] = DType(_name, getattr(torch, _name), _name, _name)
for _name, _type, _numpy, _short, _soft in (
    ("float16", torch.float16, "float16", "fp16", None),
    ("float32", torch.float32, "float32", "fp32", None),
    ("float64", torch.float64, "float64", "fp64", None),
    ("bfloat16", torch.bfloat16, "float32", "bf16", "int16"),
    ("float8e4nv", torch.float8_e4m3fn, "float32", "fp8e4nv", "int8"),
    ("float8e5", torch.float8_e5m2, "float32", "fp8e5", "int8"),
):
    TYPES[_name] = DType(_name, _type, _numpy, _short, _soft)
OF_TORCH = {one.torch: one for one in TYPES.values()}
BOOL, I32, I64, F32 = (TYPES[name] for name in ("int1", "int32", "int64", "float32"))
_SMALLEST, _LARGEST = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "max"))
_RANGES = {name: range(np.iinfo(name).min, np.iinfo(name).max + 1) for name in ("int32", "uint32", "int64", "uint64")}


class constexpr:
    """Marks a parameter, or a global, that is known when the kernel is compiled."""

    def __init__(self, value: Any) -> None:
        self.value = plain(value)


def plain(value: Any) -> Any:
    """Return a value without the mark of a constant."""
    return value.value if isinstance(value, constexpr) else value


class Block:
    """A block of numbers of a program, of shape () for one.

    `numbered`: it grows with the program's number; `loaded`: it depends on what lies in memory.
    """

    __slots__ = ("data", "dtype", "loaded", "numbered")
    functions: ClassVar[dict[str, Any]] = {}  # of the language that may be called as methods, too

    def __init__(
        self, data: Any, dtype: DType, counts: bool = False, numbered: bool = False, loaded: bool = False
    ) -> None:
        self.data, self.dtype, self.numbered, self.loaded = dtype.of(data), dtype, numbered, loaded
        if self.data.size > _MOST_ELEMENTS:
            raise wrong(f"a block has {self.data.size:,} elements, and Triton allows {_MOST_ELEMENTS:,}", "shapes")
        if counts and dtype.kind == 2:
            running[-1].report.flops += self.data.size

    shape = property(lambda self: self.data.shape)
    numel = property(lambda self: self.data.size)
    type = property(lambda self: self.dtype)
    T = property(lambda self: Block.functions["trans"](self))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in Block.functions:
            return lambda *args, **options: Block.functions[name](self, *args, **options)
        raise AttributeError(f"a block has no {name!r}")

    def to(self, dtype: DType, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Block:
        if not isinstance(dtype, DType):
            here = f": write tl.{str(dtype).rpartition('.')[2]}" if isinstance(dtype, torch.dtype) else ""
            raise wrong(f"{dtype} is no type of Triton's{here}")
        if bitcast and dtype.bits != self.dtype.bits:
            raise wrong(f"the bits of {self.dtype} cannot be read as {dtype}, which has another size")
        if self.numbered and dtype.kind < 2 and dtype.bits < 32:
            launch = running[-1]
            launch.report.narrowed = launch.report.narrowed or launch.line()
        data = dtype.decode(self.dtype.encode(self.data).view(dtype.stored)) if bitcast else self.data
        return Block(data, dtype, numbered=self.numbered, loaded=self.loaded)

    def __getitem__(self, key: Any) -> Block:
        return Block(self.data[_key(key, self.data.ndim)], self.dtype, numbered=self.numbered, loaded=self.loaded)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise wrong("an element of a block cannot be set: choose by tl.where(tl.arange(0, …) == i, …, …)", "language")

    def __bool__(self) -> bool:
        if self.data.size != 1:
            raise wrong("a block is no single yes or no, as `if` and `while` need: choose by tl.where", "shapes")
        return bool(self.data)

    def __index__(self) -> int:
        if self.data.size != 1 or self.dtype.kind == 2:
            raise wrong(f"a whole number is needed here, and this is a block of {self.dtype}")
        return int(self.data)

    def __int__(self) -> int:
        raise wrong("int() takes what is known when the kernel is compiled: write .to(tl.int32)")

    def __float__(self) -> float:
        raise wrong("float() takes what is known when the kernel is compiled: write .to(tl.float32)")

    def __len__(self) -> int:
        raise wrong("len() takes no block: its sizes are .shape[0] and so on")

    def __iter__(self) -> Any:
        raise wrong("a block cannot be walked through or unpacked: all its elements are computed with at once")

    def __pow__(self, other: Any) -> Block:
        raise wrong("Triton has no `**` for blocks: write x * x, or tl.exp2(y * tl.log2(x))", "language")

    __rpow__ = __pow__

    def __matmul__(self, other: Any) -> Block:
        raise wrong("Triton has no `@`: write tl.dot(a, b)", "language")

    __rmatmul__ = __matmul__

    def __neg__(self) -> Block:
        return Block(self.data if self.dtype is BOOL else -self.data, self.dtype, counts=True)

    def __invert__(self) -> Block:
        return Block(~self.data, self.dtype)

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)}: {self.data}"


class Pointer:
    """Addresses in the memory of an argument, counted in its elements; `dtype.element_ty` is their type."""

    def __init__(self, buffer: Buffer, data: Any, loaded: bool = False) -> None:
        self.buffer, self.data, self.loaded = buffer, np.asarray(data, np.int64), loaded
        self.dtype = self.type = types.SimpleNamespace(element_ty=buffer.dtype)

    shape = property(lambda self: self.data.shape)

    def __add__(self, other: Any, sign: int = 1) -> Pointer:
        other = as_block(other, f"what is added to the pointer {self.buffer.name}")
        if other.dtype.kind == 2:
            raise wrong(f"the pointer {self.buffer.name} is moved by {other.dtype}; it can be moved by whole numbers")
        moved = shaped(lambda: self.data + sign * other.data.astype(np.int64), self, other)
        return Pointer(self.buffer, moved, self.loaded or other.loaded)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Pointer:
        return self.__add__(other, -1)

    def __getitem__(self, key: Any) -> Pointer:
        if key is not None and not isinstance(key, tuple | slice):
            self.refuse()
        return Pointer(self.buffer, self.data[_key(key, self.data.ndim)], self.loaded)

    def __setitem__(self, key: Any, value: Any) -> None:
        name = self.buffer.name
        cure = f"memory is written by tl.store({name} + …, value), not in brackets"
        raise wrong(f"{name} is a pointer: {cure}", "language")

    def refuse(self, *_: Any) -> Any:
        """Raise for a pointer that is used in place of its element, naming the missing load."""
        raise wrong(f"{self.buffer.name} is a pointer, not its values: load them with tl.load({self.buffer.name} + …)")

    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __pow__ = __matmul__ = __rsub__ = refuse
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = __neg__ = __invert__ = refuse
    __len__ = __iter__ = __int__ = __float__ = to = refuse

    def __bool__(self) -> bool:
        if self.data.size != 1:
            raise wrong("a block of pointers is no single yes or no", "shapes")
        return True  # it points to a tensor


def as_block(value: Any, what: str = "this") -> Block:
    """Return a number of Python as a block of the type that Triton gives it, and a block as it is."""
    if isinstance(value, Block):
        return value
    value = plain(value)
    if isinstance(value, Pointer):
        value.refuse()
    if isinstance(value, bool):
        return Block(value, BOOL)
    if isinstance(value, numbers.Integral):
        return Block(int(value), TYPES[next((name for name, fit in _RANGES.items() if value in fit), "int64")])
    if isinstance(value, numbers.Real):
        number = float(value)
        fits = not math.isfinite(number) or number == 0 or _SMALLEST <= abs(number) <= _LARGEST
        return Block(number, F32 if fits else TYPES["float64"])
    raise wrong(f"{what} is a {type(value).__name__}: a kernel computes with blocks and numbers")


def constant(value: Any, what: str) -> Any:
    """Return a value that must be known when the kernel is compiled."""
    if isinstance(value, Block):
        cure = "annotate the parameter with tl.constexpr, or a name: `half: tl.constexpr = BLOCK // 2`"
        raise wrong(f"{what} must be known when the kernel is compiled: {cure}")
    return plain(value)


def value_of(constant: Any) -> Any:
    """Return the constant itself for `.value`: here constants have no wrapper."""
    if isinstance(constant, numbers.Number | str | tuple | DType) or constant is None:
        return constant
    return constant.value


def sizes(shape: Any) -> tuple[int, ...]:
    """Return a shape, given as numbers or as one tuple: sizes are known when the kernel is compiled, powers of two."""
    shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    dims = tuple(constant(n, "a size in a shape") for n in shape)
    if any(n < 1 or n & (n - 1) for n in dims):
        raise wrong(f"the shape {dims} is not of powers of two", "shapes")
    return dims


def shaped(compute: Callable[[], Any], *parts: Any) -> Any:
    """Compute with several blocks; say the shapes where they do not fit."""
    try:
        return compute()
    except ValueError:
        shapes = " and ".join(str(tuple(part.shape)) for part in parts)
        why = "[:, None] and [None, :] add an axis"
        raise wrong(f"blocks of the shapes {shapes} do not go together; {why}", "shapes") from None


def _key(key: Any, axes: int) -> Any:
    for part in key if isinstance(key, tuple) else (key,):
        if part is not None and not (isinstance(part, slice) and part == slice(None)):
            what = "a block takes only `:` and `None` in brackets; elements are picked by pointers or tl.where"
            raise wrong(what, "shapes")
    return key if axes or not isinstance(key, tuple) else tuple(part for part in key if part is None)


def promote(a: DType, a_plain: bool, b: DType, b_plain: bool, divides: bool = False) -> DType:
    """Return the type in which Triton computes with both; a plain number gives way to a block of its kind or higher."""
    if a_plain != b_plain:
        plain, other = (a, b) if a_plain else (b, a)
        if plain.kind <= other.kind:
            a = b = other
    floats = {one.name for one in (a, b) if one.kind == 2}
    if not floats:
        if divides and a.signed != b.signed:
            raise wrong(f"{a} and {b} cannot be divided, since one has a sign and the other has none: write .to(…)")
        if a.signed == b.signed:
            return a if a.bits > b.bits else b
        unsigned, signed = (b, a) if a.signed else (a, b)
        return unsigned if unsigned.bits >= signed.bits else signed
    if "float64" in floats:
        return TYPES["float64"]
    if divides or "float32" in floats:
        return F32
    if "float16" in floats:
        return TYPES["float16"]
    if a is b:
        return a
    return F32 if "bfloat16" in floats else TYPES["float16"]


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide whole numbers as C does, towards zero."""
    quotient = a // b
    return quotient + ((np.fmod(a, b) != 0) & ((a < 0) != (b < 0))).astype(quotient.dtype)


_COMPARISONS = {name: getattr(operator, name) for name in COMPARISONS.values()}
_WHOLE: dict[str, tuple[str, Callable[..., Any]]] = {
    "floordiv": ("//", _truncated), "and": ("&", operator.and_), "or": ("|", operator.or_), "xor": ("^", operator.xor),
    "lshift": ("<<", operator.lshift), "rshift": (">>", operator.rshift),
}  # fmt: skip
_OPERATORS: dict[str, Callable[..., Any]] = {
    **_COMPARISONS, **{name: compute for name, (_, compute) in _WHOLE.items()}, "add": operator.add,
    "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv, "mod": np.fmod,
    "maximum": np.fmax, "minimum": np.fmin, "highest": np.maximum, "lowest": np.minimum,
}  # fmt: skip


def combine(name: str, a: Any, b: Any) -> Block:
    """Compute with two blocks or numbers, at least one of them a block."""
    if isinstance(b, Pointer):
        return b + a if name == "add" else b.refuse()
    plain = not isinstance(a, Block), not isinstance(b, Block)
    a, b = as_block(a, "the left side"), as_block(b, "the right side")
    dtype = promote(a.dtype, plain[0], b.dtype, plain[1], name in ("truediv", "mod"))
    if name == "truediv" and dtype.kind < 2:
        dtype = F32
    if name in _WHOLE and dtype.kind == 2:
        here = "; tl.floor(a / b) divides and rounds down" if name == "floordiv" else ""
        raise wrong(f"`{_WHOLE[name][0]}` is for whole numbers, and here are {a.dtype} and {b.dtype}{here}")
    for block, is_plain in zip((a, b), plain, strict=True):
        if (
            is_plain
            and dtype.kind == 1
            and not np.iinfo(dtype.numpy).min <= int(block.data) <= np.iinfo(dtype.numpy).max
        ):
            raise wrong(f"{block.data} does not fit into {dtype}, the type of the block: convert the block by .to(…)")
    x, y = dtype.of(a.data), dtype.of(b.data)
    data = shaped(lambda: _OPERATORS[name](x, y), a, b)
    if dtype.kind == 1 and name in ("floordiv", "mod") and (zero := np.broadcast_to(y == 0, data.shape)).any():
        data = np.where(zero, running[-1].divided(data.shape), data).astype(dtype.numpy)
    if name in _COMPARISONS:
        return Block(data, BOOL)
    grows = name in ("add", "sub", "mul") and (a.numbered or b.numbered)
    return Block(data, dtype, counts=True, numbered=grows, loaded=a.loaded or b.loaded)


def _method(name: str, swapped: bool) -> Callable[[Any, Any], Block]:
    return (lambda a, b: combine(name, b, a)) if swapped else (lambda a, b: combine(name, a, b))


for _name in _OPERATORS:
    setattr(Block, f"__{_name}__", _method(_name, swapped=False))
    if _name not in _COMPARISONS:
        setattr(Block, f"__r{_name}__", _method(_name, swapped=True))


# ---- what `and`, `or`, `not` and chains of comparisons mean, and an assignment


def _yes_or_no(block: Block | Pointer, word: str) -> Block:
    if not isinstance(block, Block) or block.dtype is not BOOL:
        kind = "a pointer" if isinstance(block, Pointer) else block.dtype
        raise wrong(f"`{word}` joins what is true or false, and this is {kind}: compare it with a number")
    return block


def joined(word: str, *later: Callable[[], Any]) -> Any:
    """Return the result of `and` or `or`; a known left operand decides alone, as in Python."""
    blocks: list[Any] = []
    value = None
    for each in later:
        value = each()
        if isinstance(value, Block | Pointer):
            blocks.append(value)
        elif bool(value) == (word == "or"):
            return value
    if len(blocks) < 2:
        return blocks[0] if blocks else value
    name = "and" if word == "and" else "or"
    return functools.reduce(lambda a, b: combine(name, _yes_or_no(a, word), _yes_or_no(b, word)), blocks)


def negated(value: Any) -> Any:
    """Return the result of `not`."""
    return ~_yes_or_no(value, "not") if isinstance(value, Block | Pointer) else not value


def chained(names: tuple[str, ...], *values: Any) -> Any:
    """Return whether all comparisons of a chain hold, element by element."""
    pairs = zip(names, values, values[1:], strict=False)
    return joined("and", *(functools.partial(_COMPARISONS[name], a, b) for name, a, b in pairs))


def assigned(value: Any) -> Any:
    """Return the value of a name after its assignment: Python's numbers become the device's."""
    if isinstance(value, tuple | list):
        return tuple(map(assigned, value))
    value = plain(value)
    return as_block(value) if isinstance(value, numbers.Real) else value
