"""Operations of cuTile's IR on NumPy, each access to memory looked at."""

from __future__ import annotations

import itertools
import math
import numbers
import random
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernelcheck.faults import KernelFault
from kernelcheck.tile.front_end import OF_TORCH, dtype_of
from kernelcheck.triton.blocks import as_block
from kernelcheck.triton.functions import to_tf32
from kernelcheck.triton.memory import Buffer, Launch, Memory, line_of

__all__ = ["Run"]

_PADDING = {"zero": 0.0, "neg_zero": -0.0, "nan": math.nan, "pos_inf": math.inf, "neg_inf": -math.inf}
_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide,
    "mod": np.mod, "c_mod": np.fmod, "cdiv": lambda a, b: -(-a // b), "pow": np.power, "atan2": np.arctan2,
    "max": np.fmax, "min": np.fmin, "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_PLAIN = "exp", "exp2", "sin", "cos", "sinh", "cosh", "tan", "tanh", "log", "log2", "sqrt", "floor", "ceil", "abs"
_UNARY: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _PLAIN}, "neg": np.negative, "invert": np.invert,
    "bitwise_not": np.invert, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
_ATOMIC: dict[str, Callable[..., Any]] = {
    "AND": np.bitwise_and, "OR": np.bitwise_or, "XOR": np.bitwise_xor, "ADD": np.add, "MAX": np.maximum,
    "MIN": np.minimum, "EXCHANGE": lambda old, new: new,
}  # fmt: skip


@dataclass(frozen=True)
class Pointer:
    """Addresses in the memory of one argument, counted in elements."""

    buffer: Buffer
    data: np.ndarray


@dataclass(frozen=True)
class Array:
    """An argument, or a part of one: where it begins, its sizes, and its strides in elements."""

    pointer: Pointer
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Run(Launch):
    """One run of all blocks of a grid. A token is a set of accesses, as bits: those that come before what takes it."""

    word = "block"
    own = (*Launch.own, "_accesses", "_env", "_loc")

    def __init__(
        self, grid: tuple[int, int, int], named: dict[str, Any], memory: Memory, watched: bool,
        changed: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(grid, watched, changed)
        self._loc: Any = None
        self._accesses, self._values = 0, list[Any]()
        self._env: dict[str, Any] = {}
        self._prepared: dict[int, list[Any]] = {}
        self._patterns: dict[Any, np.ndarray] = {}
        self._counted: dict[Any, tuple[int, int]] = {}
        for name, value in named.items():
            if isinstance(value, torch.Tensor):
                if value.dtype not in OF_TORCH:
                    raise KernelFault("arguments", f"{name} is a tensor of {value.dtype}, which cannot run here")
                self.buffers.append(Buffer(name, value, OF_TORCH[value.dtype], memory))
                self._values += [Pointer(self.buffers[-1], np.zeros((), np.int64)), *value.shape, *value.stride()]
            else:
                self._values.append(as_block(value).data if isinstance(value, numbers.Real) else value)

    def all_blocks(self, ir: Any, seed: int | None = None) -> None:
        """Run the IR for each block of the grid, in order, or shuffled."""
        blocks = [(x, y, z) for z, y, x in itertools.product(*map(range, reversed(self.grid)))]
        if seed is not None:
            random.Random(seed).shuffle(blocks)

        def run() -> None:
            self._accesses = 0
            self._env = dict(zip((one.name for one in ir.params), self._values, strict=True))
            self._block(ir)

        self.codes.add(run.__code__)  # a fault says in which block
        self.each(blocks, run)

    def line(self, number: int | None = None) -> str:
        """Return the line of the operation that is running, or another line of its file."""
        return line_of(self._loc.filename, number or self._loc.line) if self._loc is not None else ""

    def _frame(self) -> Any:
        return types.SimpleNamespace(f_lineno=self._loc.line)

    def look_at_lanes(self, *_: Any, **__: Any) -> None:
        """Leave the order inside a block to its tokens."""

    # ---- blocks of operations

    def _block(self, block: Any, values: tuple[Any, ...] = ()) -> tuple[str, tuple[Any, ...]]:
        """Run a block of the IR, and return how it ends and with which values."""
        if values:
            self._env.update(zip((one.name for one in block.params), values, strict=True))
        for operation, method, loc, results in self._steps(block):
            if method is None:
                outputs = getattr(operation, "outputs", getattr(operation, "values", ()))
                return type(operation).__name__, tuple(map(self._value, outputs))
            self._loc = loc or self._loc
            result = method(operation)
            if isinstance(result, _Ended):
                return result.how, result.values
            if isinstance(result, tuple):
                self._env.update(zip(results, result, strict=True))
            else:
                self._env[results[0]] = result
        return "EndBranch", ()

    def _steps(self, block: Any) -> list[Any]:
        """Return the operations of a block of the IR with their methods, lines and names of results, prepared once."""
        if id(block) in self._prepared:
            return self._prepared[id(block)]
        steps = self._prepared[id(block)] = list[Any]()
        for one in block:
            name, loc = type(one).__name__, one.loc if one.loc.line else None
            method = getattr(self, f"_on_{name}", None)
            if method is None and name not in ("Continue", "Break", "EndBranch", "Return"):
                self._loc = loc or self._loc
                raise KernelFault("language", f"cuTile's operation {name} is not here yet", self.line())
            steps.append((one, method, loc, [result.name for result in one.result_vars]))
        return steps

    def _value(self, operand: Any) -> Any:
        return operand if (name := getattr(operand, "name", None)) is None else self._env[name]

    def _on_Loop(self, loop: Any) -> Any:
        values = tuple(map(self._value, loop.initial_values))
        turns: Any = itertools.repeat(None)
        if loop.is_for_loop:
            turns = range(*(int(self._value(one)) for one in (loop.start, loop.stop, loop.step)))
        for turn in turns:
            if turn is None:
                self.goes_on(loop.loc.line, True)
            else:
                self._turn(0.1)
            how, after = self._block(loop.body, values if turn is None else (np.int32(turn), *values))
            if how == "Return":
                return _Ended(how, after)
            values = after
            if how == "Break":
                self.goes_on(loop.loc.line, False)
                break
        return values

    def _on_IfElse(self, choice: Any) -> Any:
        how, values = self._block(choice.then_block if bool(self._value(choice.cond)) else choice.else_block)
        return values if how == "EndBranch" else _Ended(how, values)

    # ---- numbers

    def _result(self, operation: Any, data: Any, flops: int = 0) -> np.ndarray:
        """Return numbers as the operation's result has them, and count the work that made them."""
        kind = operation.result_vars[0].get_type()
        dtype = dtype_of(kind)
        self.report.flops += flops * np.size(data) if dtype.kind == 2 else 0
        data = dtype.of(data)
        return to_tf32(data) if str(kind.dtype) == "tfloat32" else data

    def _shaped(self, value: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
        return Pointer(value.buffer, change(value.data)) if isinstance(value, Pointer) else change(np.asarray(value))

    def _reshape(self, one: Any) -> Any:
        return self._shaped(self._value(one.x), lambda data: data.reshape(one.result_vars[0].get_type().shape))

    def _broadcast(self, one: Any) -> Any:
        return self._shaped(self._value(one.x), lambda data: np.broadcast_to(data, one.result_vars[0].get_type().shape))

    def _same(self, one: Any) -> Any:
        return self._value(one.x)

    _on_TileReshape, _on_TileBroadcast, _on_AssumeBounded, _on_AssumeDivBy = _reshape, _broadcast, _same, _same

    def _on_Assign(self, one: Any) -> Any:
        return self._value(one.value)

    def _on_MakeDummy(self, one: Any) -> Any:
        return None

    def _on_TypedConst(self, one: Any) -> Any:
        return self._result(one, np.full(one.result_vars[0].get_type().shape, one.value))

    def _on_TileArange(self, one: Any) -> Any:
        return self._result(one, np.arange(one.result_vars[0].get_type().shape[0]))

    def _on_TileAsType(self, one: Any) -> Any:
        return self._result(one, self._value(one.x))

    def _on_TileBitCast(self, one: Any) -> Any:
        before, after = dtype_of(one.x.get_type()), dtype_of(one.result_vars[0].get_type())
        raw = np.ascontiguousarray(before.encode(np.atleast_1d(self._value(one.x)))).view(after.stored)
        return after.decode(raw).reshape(one.result_vars[0].get_type().shape)

    def _binary(self, one: Any) -> Any:
        return self._result(one, _BINARY[one.fn](self._value(one.lhs), self._value(one.rhs)), 1)

    _on_RawComparisonOperation = _on_RawBinaryBitwiseOperation = _on_RawBitwiseShiftOperation = _binary

    def _on_RawBinaryArithmeticOperation(self, one: Any) -> Any:
        lhs, rhs = self._value(one.lhs), self._value(one.rhs)
        compute = {"max": np.maximum, "min": np.minimum}.get(one.fn) if one.propagate_nan else None
        if one.fn in ("floordiv", "cdiv", "mod", "c_mod") and np.asarray(rhs).dtype.kind in "iu" and not np.all(rhs):
            raise self.fault("error", f"{self.word} {self.name()} divides a whole number by zero")
        return self._result(one, (compute or _BINARY[one.fn])(lhs, rhs), 1)

    def _on_Unary(self, one: Any) -> Any:
        return self._result(one, _UNARY[one.fn](self._value(one.operand)), 1)

    def _on_RawFPowIOperation(self, one: Any) -> Any:
        return self._result(one, np.power(self._value(one.base), self._value(one.exponent)), 1)

    def _on_FusedMulAddOperation(self, one: Any) -> Any:
        x, y, acc = (np.asarray(self._value(part)) for part in (one.lhs, one.rhs, one.acc))
        wide = np.float64 if x.dtype.itemsize == 4 else x.dtype  # rounded once
        return self._result(one, x.astype(wide) * y.astype(wide) + acc, 2)

    def _on_RawWhereOperation(self, one: Any) -> Any:
        return self._result(one, np.where(*(self._value(part) for part in (one.cond, one.x, one.y))))

    def _on_TilePermute(self, one: Any) -> Any:
        return np.transpose(self._value(one.x), one.axes)

    def _on_TileCat(self, one: Any) -> Any:
        return np.concatenate([self._value(one.x), self._value(one.y)], one.axis)

    def _part(self, one: Any, shape: tuple[int, ...]) -> tuple[slice, ...]:
        starts = [int(self._value(index)) * size for index, size in zip(one.index, shape, strict=True)]
        return tuple(slice(start, start + size) for start, size in zip(starts, shape, strict=True))

    def _on_TileExtract(self, one: Any) -> Any:
        return np.asarray(self._value(one.x))[self._part(one, one.shape)]

    def _on_TileInsert(self, one: Any) -> Any:
        whole, part = np.array(self._value(one.x)), np.asarray(self._value(one.value))
        whole[self._part(one, part.shape)] = part
        return whole

    def _on_TileMma(self, one: Any) -> Any:
        x, y, acc = (np.asarray(self._value(part)) for part in (one.x, one.y, one.acc))
        self.report.flops += 2 * np.size(acc) * x.shape[-1] if acc.dtype.kind == "f" else 0
        wide = acc.dtype if acc.dtype.kind != "f" or acc.dtype.itemsize > 4 else np.float32
        return self._result(one, x.astype(wide) @ y.astype(wide) + acc)

    def _on_TileMmaScaled(self, one: Any) -> Any:
        parts = one.x, one.x_scale, one.y, one.y_scale, one.acc
        x, x_scale, y, y_scale, acc = (np.asarray(self._value(part)) for part in parts)
        self.report.flops += 2 * acc.size * x.shape[-1]
        x = x * np.repeat(x_scale, x.shape[-1] // x_scale.shape[-1], -1)
        return self._result(one, x @ (y * np.repeat(y_scale, y.shape[-2] // y_scale.shape[-2], -2)) + acc)

    def _folded(self, one: Any, left: list[Any], right: list[Any]) -> list[Any]:
        """Combine elements in pairs, as the body of a reduction does with two."""
        sizes, flops = np.size(left[0]), self.report.flops
        pairs = [part for pair in zip(left, right, strict=True) for part in pair]
        _, values = self._block(one.body, tuple(pairs))
        self.report.flops = flops + sizes * any(np.asarray(value).dtype.kind == "f" for value in values)
        return [np.asarray(value) for value in values]

    def _on_TileReduce(self, one: Any) -> Any:
        parts = [np.moveaxis(np.asarray(self._value(x)), one.axis, 0) for x in one.xs]
        while len(parts[0]) > 1:  # in pairs, as threads of a GPU do: sizes are powers of two
            half = len(parts[0]) // 2
            parts = self._folded(one, [part[:half] for part in parts], [part[half:] for part in parts])
        return tuple(part[0] for part in parts)

    def _on_TileScan(self, one: Any) -> Any:
        parts = [np.moveaxis(np.asarray(self._value(x)), one.axis, 0) for x in one.xs]
        parts = [part[::-1] for part in parts] if one.reverse else parts
        rows = [[part[0] for part in parts]]
        for n in range(1, len(parts[0])):
            rows.append(self._folded(one, rows[-1], [part[n] for part in parts]))
        made = [np.stack(column) for column in zip(*rows, strict=True)]
        made = [part[::-1] for part in made] if one.reverse else made
        return tuple(np.moveaxis(part, 0, one.axis) for part in made)

    # ---- the grid, and what is said

    def _on_TileBid(self, one: Any) -> Any:
        return np.int32(self.program[one.axis])

    def _on_TileNumBlocks(self, one: Any) -> Any:
        return np.int32(self.grid[one.axis])

    def _on_TileAssert(self, one: Any) -> Any:
        if not np.all(self._value(one.cond)):
            raise self.fault("assert", f"{self.word} {self.name()}: {one.message or 'the assertion does not hold'}")
        return ()

    def _on_TilePrintf(self, one: Any) -> Any:
        print(one.format.rstrip("\n"), *map(self._value, one.args))
        return 0 if one.result_vars else ()

    # ---- memory

    def _on_MakeToken(self, one: Any) -> int:
        return 0

    def _on_JoinTokens(self, one: Any) -> int:
        joined = 0
        for token in one.tokens:
            joined |= self._value(token)
        return joined

    def _on_MakeTensorView(self, one: Any) -> Array:
        shape, strides = ([int(self._value(n)) for n in part] for part in (one.shape, one.strides))
        return Array(self._value(one.base_ptr), tuple(shape), tuple(strides))

    def _on_MakePartitionView(self, one: Any) -> Array:
        return self._value(one.array)

    _on_MakeStridedView = _on_MakePartitionView

    def _on_NumTiles(self, one: Any) -> Any:
        array, (steps, order, _, _) = self._value(one.view), _view(one.view)
        return tuple(np.int32(-(-array.shape[axis] // step)) for axis, step in zip(order, steps, strict=True))

    def _tile(self, one: Any, verb: str) -> tuple[Pointer, np.ndarray | None]:
        """Return pointers to the elements of a tile, and which of them lie in the array: None for all."""
        array, (steps, order, sizes, _) = self._value(one.view), _view(one.view)
        first, inside = 0, None
        for place, (index, axis) in enumerate(zip(one.index, order, strict=True)):
            number, limit = int(self._value(index)), array.shape[axis]
            start = number * steps[place]
            first, stop = first + start * array.strides[axis], start + sizes[place]
            if start < 0 or stop > limit:
                outside = start < 0 or start >= limit
                if outside or any(getattr(one, "inbounds", ())[place : place + 1]):
                    name = array.pointer.buffer.name
                    what = f"{verb} tile {number:,} of axis {axis} of {name}, whose size is {limit:,}"
                    why = f"check_bounds=False promises {stop:,} elements"
                    why = f"the tile begins at element {start:,}, and none of it lies in the array" if outside else why
                    what = f"{self.word} {self.name()} {what}"
                    raise self.fault("out of bounds", what, why, array=name, element=start)
                within = np.arange(start, stop).reshape([-1 if n == place else 1 for n in range(len(sizes))]) < limit
                inside = np.broadcast_to(within if inside is None else inside & within, sizes)
        shape = sizes, tuple(array.strides[axis] for axis in order)
        if shape not in self._patterns:
            steps = zip(np.indices(sizes, sparse=True), shape[1], strict=True)
            self._patterns[shape] = sum((at * step for at, step in steps), np.zeros(sizes, np.int64))
        return Pointer(array.pointer.buffer, self._patterns[shape] + (array.pointer.data + first)), inside

    def _wanted(self, buffer: Buffer, offsets: np.ndarray, active: np.ndarray | None) -> tuple[int, int]:
        """Return the sectors and requests of an access, those of the same places in a sector counted once."""
        if active is not None or offsets.size < 2:
            return super()._wanted(buffer, offsets, active)
        start = int(offsets.flat[0])
        key = (start + buffer.base) * buffer.item % 32, buffer.item, offsets.shape, (offsets - start).tobytes()
        if key not in self._counted:
            self._counted[key] = super()._wanted(buffer, offsets, active)
        return self._counted[key]

    def _on_TileLoad(self, one: Any) -> Any:
        pointer, inside = self._tile(one, "loads")
        return self._loaded(one, pointer, inside, _PADDING.get(_view(one.view)[3]))

    def _on_TileStore(self, one: Any) -> Any:
        return self._stored(one, *self._tile(one, "stores"), self._value(one.tile))

    def _on_PointerOffset(self, one: Any) -> Pointer:
        pointer = self._value(one.pointer)
        return Pointer(pointer.buffer, pointer.data + np.asarray(self._value(one.offset)).astype(np.int64))

    def _mask(self, one: Any, shape: tuple[int, ...]) -> np.ndarray | None:
        mask = True if one.mask is None else self._value(one.mask)
        return None if np.all(mask) else np.broadcast_to(mask, shape)

    def _on_LoadPointer(self, one: Any) -> Any:
        pointer, padding = self._value(one.pointer), one.padding_value
        mask = self._mask(one, pointer.data.shape)
        return self._loaded(one, pointer, mask, None if padding is None else self._value(padding))

    def _on_StorePointer(self, one: Any) -> Any:
        pointer = self._value(one.pointer)
        return self._stored(one, pointer, self._mask(one, pointer.data.shape), self._value(one.value))

    def _loaded(self, one: Any, pointer: Pointer, inside: np.ndarray | None, padding: Any) -> tuple[np.ndarray, int]:
        buffer, shape = pointer.buffer, pointer.data.shape
        elements = self.touch("load", buffer, pointer.data, inside)
        token = self._in_order("load", one, buffer, elements)
        if inside is None:
            return buffer.read(elements).reshape(shape), token
        padding = self._undefined(buffer, shape) if padding is None else np.broadcast_to(padding, shape)
        tile = buffer.dtype.of(padding).copy()
        tile[inside] = buffer.read(elements)
        return tile, token

    def _undefined(self, buffer: Buffer, shape: tuple[int, ...]) -> np.ndarray:
        """Return what shows in a result: NaN, and in further runs other numbers."""
        line = self.line()
        what = f"{self.word} {self.name()} loads a tile of {buffer.name} that extends beyond the array"
        why = "without padding_mode these elements have no value, and the result depends on them"
        self.undefined.setdefault(line, self.fault("undefined", what, why, array=buffer.name))
        changed = self.changed in ("", line)
        return np.full(shape, 0 if changed else math.nan if buffer.dtype.kind == 2 else 100)

    def _stored(self, one: Any, pointer: Pointer, inside: np.ndarray | None, values: Any) -> int:
        buffer, whole = pointer.buffer, np.broadcast_to(values, pointer.data.shape)
        data, elements = _among(whole, inside), self.touch("store", buffer, pointer.data, inside, whole)
        token = self._in_order("store", one, buffer, elements)
        order = np.argsort(elements, kind="stable")
        clash = (elements[order][1:] == elements[order][:-1]) & (data[order][1:] != data[order][:-1])
        if clash.any():
            element = int(elements[order][1:][clash][0])
            what = f"{self.word} {self.name()} writes different values to element {element:,} of {buffer.name} at once"
            raise self.fault("race", what, "which of them stays is undefined", array=buffer.name, element=element)
        buffer.write(elements, data)
        return token

    def _in_order(self, kind: str, one: Any, buffer: Buffer, elements: np.ndarray) -> int:
        """Raise a race where an access of this block to these elements is not among those that the token holds."""
        if not self.watched:
            return 0
        self._accesses += 1
        bit, before = 1 << self._accesses, self._value(one.token) if one.token is not None else 0
        for column in ("stored",) if kind == "load" else ("stored", "loaded"):
            if f"{column} by block" not in buffer.book:
                continue
            who, when = (buffer.column(f"{column} {what}")[elements] for what in ("by block", "as access"))
            mine = np.unique(when[who == self.me]) if (who == self.me).any() else ()
            if late := [int(n) for n in mine if not before >> int(n) & 1]:
                element = int(elements[(who == self.me) & (when == late[0])][0])
                did = {"stored": "written", "loaded": "read"}[column]
                what = f"{self.word} {self.name()} {kind}s element {element:,} of {buffer.name}, which it has {did}"
                raise self.fault("race", what, "no token orders the two", array=buffer.name, element=element)
        mark = "loaded" if kind == "load" else "stored"
        buffer.column(f"{mark} by block")[elements] = self.me
        buffer.column(f"{mark} as access")[elements] = self._accesses
        return before | bit

    def _exchange(
        self, one: Any, pointer: Pointer, mask: np.ndarray | None, change: Callable[..., Any], *given: Any
    ) -> Any:
        """Change elements one after the other and return what they were before."""
        buffer, shape = pointer.buffer, pointer.data.shape
        elements = self.touch("atomic", buffer, pointer.data, mask)
        parts = [_among(np.broadcast_to(self._value(part), shape), mask) for part in given]
        old, token = np.zeros(shape, buffer.dtype.numpy), self._in_order("load", one, buffer, elements)
        before = np.zeros(elements.size, buffer.dtype.numpy)
        for n in range(elements.size):
            place = elements[n : n + 1]
            before[n : n + 1] = buffer.read(place)
            buffer.write(place, buffer.dtype.of(change(before[n : n + 1], *(part[n : n + 1] for part in parts))))
        self.report.flops += elements.size if buffer.dtype.kind == 2 else 0
        old[... if mask is None else mask] = before.reshape(shape) if mask is None else before
        return old, token

    def _on_TileAtomicRMW(self, one: Any) -> Any:
        pointer = self._value(one.pointer)
        return self._exchange(one, pointer, self._mask(one, pointer.data.shape), _atomic(one), one.update)

    def _on_TileAtomicCAS(self, one: Any) -> Any:
        pointer = self._value(one.pointer)
        mask = self._mask(one, pointer.data.shape)
        swap = lambda old, wanted, new: np.where(old == wanted, new, old)  # noqa: E731
        return self._exchange(one, pointer, mask, swap, one.expected, one.desired)

    def _on_TileAtomicRedView(self, one: Any) -> Any:
        return self._exchange(one, *self._tile(one, "changes"), _atomic(one), one.update)[1]


def _among(values: np.ndarray, inside: np.ndarray | None) -> np.ndarray:
    """Return the values inside, in a row."""
    return values.reshape(-1) if inside is None else values[inside]


@dataclass(frozen=True)
class _Ended:
    """How a block inside another one ended both."""

    how: str
    values: tuple[Any, ...]


def _view(operand: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
    """Return steps from tile to tile, axes of the array, sizes of a tile, and the padding of a view."""
    kind = operand.get_type()
    sizes = kind.tile_shape
    return getattr(kind, "traversal_steps", sizes), kind.order, sizes, kind.padding_mode.value


def _atomic(one: Any) -> Callable[..., Any]:
    return next(change for name, change in _ATOMIC.items() if name in one.mode.name.split("_"))
