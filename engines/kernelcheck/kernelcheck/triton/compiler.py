"""Errors of Triton's compiler, found in one walk over a kernel with types and shapes and without values.

A compiler sees each statement once, whichever way a program takes, so it refuses what Python would only meet later, or
never: a name that changes its type or shape in a loop, a name that one branch alone makes, a `return` in a loop, a
function of Python's. What is refused is said at the reader's line, with what to write instead. The rules are those of
Triton 3.9.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import numbers
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kernelcheck.faults import KernelFault
from kernelcheck.triton import blocks as device
from kernelcheck.triton.block_pointers import BlockPointer
from kernelcheck.triton.blocks import I32, I64, Block, DType, Pointer, as_block, constant, constexpr, plain
from kernelcheck.triton.descriptors import TensorDescriptor
from kernelcheck.triton.functions import IN_KERNELS, tl
from kernelcheck.triton.kernel import ConstantFunction, Kernel, Room, meaning, of_room, outside
from kernelcheck.triton.memory import Launch, line_of, running, wrong
from kernelcheck.triton.text import COMPARISONS, Text, is_constexpr, text_of

_DEEPEST = 50  # kernels that call one another
_MISSING = object()
_OPERATORS: dict[type[ast.AST], tuple[str, Callable[..., Any]]] = {
    ast.Add: ("+", operator.add), ast.Sub: ("-", operator.sub), ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv), ast.FloorDiv: ("//", operator.floordiv), ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow), ast.MatMult: ("@", operator.matmul), ast.LShift: ("<<", operator.lshift),
    ast.RShift: (">>", operator.rshift), ast.BitAnd: ("&", operator.and_), ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor), ast.USub: ("-", operator.neg), ast.UAdd: ("+", operator.pos),
    ast.Invert: ("~", operator.invert), ast.Not: ("not", device.negated),
}  # fmt: skip
_WORDS: dict[type[ast.AST], str] = {
    ast.Break: "break", ast.Continue: "continue", ast.Try: "try", ast.Lambda: "lambda", ast.Raise: "raise",
    ast.Dict: "dictionary", ast.DictComp: "dictionary", ast.Set: "set", ast.SetComp: "set", ast.Yield: "yield",
    ast.GeneratorExp: "generator", ast.Global: "global", ast.Nonlocal: "nonlocal", ast.Import: "import",
    ast.ImportFrom: "import", ast.ClassDef: "class", ast.FunctionDef: "def", ast.Delete: "del", ast.With: "with",
    ast.Match: "match", ast.Await: "await", ast.AsyncFunctionDef: "def", ast.Starred: "*",
}  # fmt: skip
_INSTEAD = {
    "abs": "tl.abs", "sum": "tl.sum", "pow": "x * x", "round": "tl.floor(x + 0.5)", "bool": "a comparison",
    "any": "tl.max of a condition", "all": "tl.min of a condition", "sorted": "tl.sort", "zip": "tl.static_range",
    "enumerate": "tl.static_range", "map": "the function on the whole block", "divmod": "// and %",
}  # fmt: skip
_CURES = {
    "break": "give the loop its end before it begins, or mask what comes after it",
    "continue": "put the rest of the loop under an `if`, or mask it",
    "lambda": "write a function under @triton.jit",
    "def": "write the function outside of the kernel, under @triton.jit",
}
_OF_DEVICE = Block | Pointer | BlockPointer | TensorDescriptor
_MEMBERS = "shape", "dtype", "type", "numel", "T", "to"


def compiled(kernel: Kernel, arguments: dict[str, Any], grid: tuple[int, int, int]) -> None:
    """Walk through a kernel as Triton's compiler does. Raises `KernelFault`, or an error of Python, at the line."""
    compilation = Compilation(grid)
    running.append(compilation)
    try:
        with np.errstate(all="ignore"):
            returned = compilation.call(kernel, (), arguments)
        if any(map(_is_runtime, returned if isinstance(returned, tuple) else (returned,))):
            line = line_of(*compilation.last)
            raise KernelFault("language", "a kernel returns nothing", line, why="tl.store writes its result")
    except KernelFault:
        raise
    except RecursionError:
        raise KernelFault("language", f"{kernel.__name__} calls itself, which a kernel cannot") from None
    except Exception as error:
        raise KernelFault("error", f"{type(error).__name__}: {error}", compilation.line()) from error
    finally:
        running.pop()


class Compilation(Launch):
    """Launch without values: functions see types and shapes, and memory is not touched."""

    computes = False

    def __init__(self, grid: tuple[int, int, int]) -> None:
        super().__init__(grid, watched=False)
        self.places: list[tuple[str, int]] = []  # where each kernel that is being walked through has got to
        self.last: tuple[str, int] = "", 0  # the last return

    def line(self, number: int | None = None) -> str:
        """Return the line of the innermost kernel, or another line of it."""
        if not self.places:
            return ""
        file, here = self.places[-1]
        return line_of(file, number or here)

    def call(self, kernel: Kernel, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Walk through a kernel and return its result."""
        if len(self.places) > _DEEPEST:
            raise RecursionError
        bound = kernel.signature.bind(*args, **options)
        bound.apply_defaults()
        text = text_of(kernel.fn)
        self.places.append((text.file, text.function.lineno))
        result = _Walk(self, kernel, text, dict(bound.arguments)).result()
        self.places.pop()
        return result


def _is_runtime(value: Any) -> bool:
    return isinstance(value, Block | Pointer)


def _is_one_of(function: Any, *others: Any) -> bool:
    return any(function is one for one in others)  # since == of a block gives a block


def _kind(value: Any) -> tuple[Any, ...]:
    """Return the loop invariant of a name: its type and shape, or its value where it is a constant."""
    if isinstance(value, Block):
        return "block", value.dtype.short, value.shape
    if isinstance(value, Pointer):
        return "pointer", value.buffer.dtype.short, value.shape
    if isinstance(value, BlockPointer):
        return "block pointer", value.base.buffer.dtype.short, value.shape
    if isinstance(value, TensorDescriptor):
        return "tensor descriptor", value.dtype.short, value.block_shape
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    return "constant", type(value).__name__, str(value)


def _said(value: Any) -> str:
    """Return type and shape in words."""
    if isinstance(value, Block):
        return f"a block {value.dtype}{list(value.shape)}" if value.shape else f"one {value.dtype} number"
    if isinstance(value, Pointer):
        return f"a block of pointers{list(value.shape)}" if value.shape else f"a pointer to {value.buffer.dtype}"
    if isinstance(value, BlockPointer):
        return f"a pointer to a block{list(value.shape)}"
    if isinstance(value, TensorDescriptor):
        return f"a tensor descriptor of blocks{list(value.block_shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_said, value))})"
    return f"the constant {value}" if value is not None else "None"


def _alike(first: Any, second: Any) -> str:
    """Return the advice for a name that holds `first` and then `second`, which differ in type or shape."""
    if not isinstance(second, Block) or (isinstance(first, Block) and len(first.shape) > len(second.shape)):
        return "use another name for the second"
    if isinstance(first, Block) and first.shape == second.shape and (first.dtype.kind, second.dtype.kind) != (1, 2):
        return f"convert the second by .to(tl.{first.dtype.name})"
    if second.shape:
        return f"begin with tl.zeros({second.shape}, dtype=tl.{second.dtype.name})"
    number = "0.0" if second.dtype.short == "fp32" else f"tl.zeros((), dtype=tl.{second.dtype.name})"
    return f"begin with {number}"


class _Walk(ast.NodeVisitor):
    """A walk through the text of one kernel with what its names hold."""

    def __init__(self, compilation: Compilation, kernel: Kernel, text: Text, scope: dict[str, Any]) -> None:
        self.compilation, self.text, self.scope = compilation, text, scope
        self.outside = outside(kernel.fn)
        self.lost: dict[str, str] = {}  # names that exist in a branch or a loop only: which
        self.made_at: dict[str, int] = {}  # the line at which a name got its value
        self.made: set[str] = set()  # names that got a value in the innermost branch
        self.constants: set[str] = set()  # names annotated with tl.constexpr before they got a value
        self.loops = 0
        self.returned: list[Any] = []

    def result(self) -> Any:
        """Walk through all statements and return the kernel's result."""
        self.body(self.text.function.body)
        if not self.returned:
            return None
        first, *others = self.returned
        for other in others:
            if _kind(other) != _kind(first):
                what = f"{self.text.function.name} returns {_said(first)} at one place and {_said(other)} at another"
                raise wrong(what, "types")
        return first

    # ---- statements

    def body(self, statements: Sequence[ast.stmt]) -> None:
        """Walk through statements, up to a return."""
        for statement in statements:
            self.visit(statement)
            if isinstance(statement, ast.Return):
                return

    def visit(self, node: ast.AST | None) -> Any:
        if node is None:
            return None
        places, before = self.compilation.places, self.compilation.places[-1]
        places[-1] = self.text.file, getattr(node, "lineno", before[1])
        result = super().visit(node)
        places[-1] = before
        return result

    def generic_visit(self, node: ast.AST) -> Any:
        word = _WORDS.get(type(node), type(node).__name__)
        cure = _CURES.get(word, "")
        raise self.fault(f"Triton's language has no `{word}` in a kernel", "language", cure)

    def fault(self, what: str, kind: str, why: str = "") -> KernelFault:
        return self.compilation.fault(kind, what, why)

    def visit_Pass(self, node: ast.Pass) -> None: ...

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(self.visit(node.value), BlockPointer):
            why = "give the result a name, such as p = tl.advance(p, (0, BLOCK))"
            raise self.fault("a block pointer stays where it is: tl.advance returns another one", "language", why)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)

    def visit_Return(self, node: ast.Return) -> None:
        if self.loops:
            why = "let the loop run to its end, and mask what is not to happen"
            raise self.fault("Triton's language has no `return` in a loop", "language", why)
        self.returned.append(self.visit(node.value))
        self.compilation.last = self.compilation.places[-1]

    def visit_Assign(self, node: ast.Assign) -> None:
        if len(node.targets) > 1:
            raise self.fault("Triton gives one name a value at a time: write `b = …` and then `a = b`", "language")
        self.assign(node.targets[0], self.visit(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            return self.assign(node.target, None)
        target = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        self.assign(node.target, self.operate(node.op, self.visit(target), self.visit(node.value)))
        return None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if not isinstance(node.target, ast.Name):
            return self.assign(node.target, None)
        name, constants = node.target.id, is_constexpr(node.annotation)
        if node.value is None:
            self.constants |= {name} if constants else set()
        elif not constants:
            self.assign(node.target, self.visit(node.value))
        elif name in self.scope:
            raise self.fault(f"{name} has a value already, and tl.constexpr is for the first", "language")
        else:
            self.keep(name, plain(self.visit(node.value)))
        return None

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        self.assign(node.target, self.visit(node.value))
        return self.scope[node.target.id]

    def assign(self, target: ast.expr, value: Any) -> None:
        """Assign a value to a name, or values to several."""
        if isinstance(target, ast.Tuple | ast.List):
            if not isinstance(value, tuple) or len(value) != len(target.elts):
                count = f"{len(value)} values" if isinstance(value, tuple) else _said(value)
                raise self.fault(f"{len(target.elts)} names are to take {count}", "types")
            for each, part in zip(target.elts, value, strict=True):
                self.assign(each, part)
        elif isinstance(target, ast.Subscript):
            self.visit(target.value)[_MISSING] = value
        elif isinstance(target, ast.Name):
            self.keep(target.id, value if target.id in self.constants else self.storable(target.id, value))
        else:
            raise self.fault("a kernel gives values to names alone", "language")

    def storable(self, name: str, value: Any) -> Any:
        """Return the value of a name after its assignment. Raises for values that no name can hold."""
        known = isinstance(value, _OF_DEVICE | tuple | DType | numbers.Real | constexpr)
        if not known and value is not None:
            kind = "text" if isinstance(value, str) else type(value).__name__
            raise self.fault(f"{name} cannot hold a {kind}: annotate it, {name}: tl.constexpr = …", "types")
        return device.assigned(value)

    def keep(self, name: str, value: Any) -> None:
        self.scope[name] = value
        self.made.add(name)
        self.made_at[name] = self.compilation.places[-1][1]
        self.lost.pop(name, None)

    # ---- branches and loops

    def visit_If(self, node: ast.If) -> None:
        condition = self.visit(node.test)
        if not _is_runtime(condition):
            if not isinstance(condition, bool | int | None):
                raise self.fault(f"`if` asks what is true or false, and this is {_said(condition)}", "types")
            return self.body(node.body if condition else node.orelse)
        self.single(condition, "if")
        for statement in (inner for each in (*node.body, *node.orelse) for inner in ast.walk(each)):
            if self.loops and isinstance(statement, ast.Return):
                self.visit(statement)  # which raises
        before, made = self.scope, self.made
        ends = []
        for body in (node.body, node.orelse):
            self.scope, self.made = dict(before), set()
            self.body(body)
            ends.append((self.scope, self.made))
        self.scope, self.made = self.merged(before, ends), made | ends[0][1] | ends[1][1]
        return None

    def merged(self, before: dict[str, Any], ends: list[tuple[dict[str, Any], set[str]]]) -> dict[str, Any]:
        """Merge the names of two branches. Raises for a name with two types."""
        (left, first), (right, second) = ends
        scope = dict(before)
        for name in sorted(first | second):
            values: tuple[Any, ...] = left.get(name, _MISSING), right.get(name, _MISSING)
            if any(one is _MISSING for one in values):
                self.lost[name] = "one branch of an `if` alone: give it a value in the other, too, or before"
                continue
            if name in before and before[name] is not None:
                values = before[name], *values
            elif name not in first & second:
                continue  # None before, and made by one branch: it stays None
            if len(set(map(_kind, values))) > 1:
                other = next(one for one in values if _kind(one) != _kind(values[0]))
                where = "before the `if`" if name in before else "in one branch"
                raise self.changes(name, values[0], other, where, "in the `if`" if name in before else "in the other")
            scope[name] = values[-1]
        return scope

    def changes(self, name: str, first: Any, second: Any, there: str, here: str) -> KernelFault:
        """Return the error for a name with two types, at the line of its second assignment."""
        self.compilation.places[-1] = self.text.file, self.made_at.get(name, self.compilation.places[-1][1])
        what = f"{name} is {_said(first)} {there}, and {_said(second)} {here}"
        return self.fault(what, "types", f"a name keeps its type and shape: {_alike(first, second)}")

    def single(self, condition: Any, word: str) -> None:
        """Raise unless a condition is one yes or no."""
        if math.prod(condition.shape) != 1:
            what = f"{_said(condition)} is no single yes or no, for which `{word}` asks"
            raise self.fault(what, "shapes", "each element has its own answer: choose by tl.where, or by a mask")

    def visit_For(self, node: ast.For) -> None:
        target, bounds = self.head(node)
        if isinstance(bounds, range):
            for number in bounds:
                self.scope[target] = number
                self.body(node.body)
            return
        before, made = dict(self.scope), self.made
        self.scope[target] = before[target] = bounds
        self.turn(node, before, made, target)

    def head(self, node: ast.For) -> tuple[str, Any]:
        """Return the name that a loop counts with, and a number of its type, or all numbers where these are known."""
        call = node.iter if isinstance(node.iter, ast.Call) else ast.Call(ast.Constant(None), [], [])
        function = self.visit(call.func)
        if (
            not _is_one_of(function, IN_KERNELS["range"], tl.static_range)
            or not isinstance(node.target, ast.Name)
            or node.orelse
        ):
            what = "a loop in a kernel is `for i in range(…)`, tl.range or tl.static_range"
            raise self.fault(f"{what}, without an `else`", "language")
        bounds = [self.visit(one) for one in call.args]
        for keyword in call.keywords:
            self.visit(keyword.value)
        if function is tl.static_range:
            return node.target.id, function(*bounds)
        blocks = [as_block(one, "a bound of range") for one in bounds]
        for bound in blocks:
            if bound.dtype.kind == 2 or bound.shape:
                raise self.fault(f"range counts with whole numbers, and here is {_said(bound)}", "types")
        return node.target.id, Block(0, I64 if any(one.dtype.bits == 64 for one in blocks) else I32)

    def visit_While(self, node: ast.While) -> None:
        if node.orelse:
            raise self.fault("Triton's language has no `else` behind a loop", "language")
        before, made = dict(self.scope), self.made
        condition = self.visit(node.test)
        if not _is_runtime(condition):
            what = f"`while` asks for a condition of the device, and this is {_said(condition)}"
            raise self.fault(what, "language", "`while True` has no end, and there is no `break`")
        self.single(condition, "while")
        self.turn(node, before, made)

    def turn(self, node: ast.For | ast.While, before: dict[str, Any], made: set[str], counter: str = "") -> None:
        """Walk through a loop once. Raises where a name is not what it was before; `counter` is set in each turn."""
        self.made, self.loops = set(), self.loops + 1
        self.body(node.body)
        self.loops -= 1
        word = "while" if isinstance(node, ast.While) else "for"
        for name in sorted(self.made - {counter}):
            if name not in before:
                self.lost[name] = f"the `{word}` loop alone: give it a first value before"
            elif _kind(before[name]) != _kind(self.scope[name]):
                raise self.changes(name, before[name], self.scope[name], "before the loop", "after one turn")
        self.scope = {name: self.scope[name] for name in before}
        self.made = made | (self.made & before.keys())

    # ---- expressions

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        name = node.id
        if name in self.scope:
            return self.scope[name]
        if name in self.lost:
            raise self.fault(f"{name} exists in {self.lost[name]}", "types")
        if name in self.outside and name not in IN_KERNELS:
            return meaning(self.outside[name], name)
        if name in IN_KERNELS:
            return IN_KERNELS[name]
        if name in _INSTEAD:
            raise self.fault(f"{name}() is Python's, and a kernel cannot call it: write {_INSTEAD[name]}", "language")
        raise NameError(f"name '{name}' is not defined")

    def visit_Tuple(self, node: ast.Tuple | ast.List) -> tuple[Any, ...]:
        return tuple(self.visit(one) for one in node.elts)

    visit_List = visit_Tuple

    def visit_ListComp(self, node: ast.ListComp) -> tuple[Any, ...]:
        (loop, *others) = node.generators
        values = self.visit(loop.iter)
        if others or not isinstance(values, tuple):
            raise self.fault("a list in brackets is made from a tuple alone: use tl.static_range", "language")
        elements = []
        for value in values:
            self.assign(loop.target, value)
            if all(self.visit(condition) for condition in loop.ifs):
                elements.append(self.visit(node.elt))
        return tuple(elements)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> str:
        parts = [self.visit(one.value if isinstance(one, ast.FormattedValue) else one) for one in node.values]
        if any(map(_is_runtime, parts)):
            why = "a text is made when the kernel is compiled: print('x', x) takes values behind the text"
            raise self.fault("an f-string in a kernel cannot hold numbers of the device", "language", why)
        return "".join(map(str, parts))

    def visit_Slice(self, node: ast.Slice) -> slice:
        return slice(self.visit(node.lower), self.visit(node.upper), self.visit(node.step))

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        value, key = self.visit(node.value), self.visit(node.slice)
        if isinstance(value, tuple) and _is_runtime(key):
            raise self.fault("a place in a tuple must be known when the kernel is compiled", "types")
        return value[key]

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        value = self.visit(node.value)
        if node.attr == "value" and not _is_runtime(value):
            return device.value_of(value)
        if isinstance(value, types.ModuleType):
            return self.of_module(value, node.attr)
        if _is_runtime(value) and node.attr not in _MEMBERS and node.attr not in Block.functions:
            here = f": write tl.{node.attr}(…)" if hasattr(tl, node.attr) else ", and torch's methods do not exist here"
            raise self.fault(f"{_said(value)} has no .{node.attr}{here}", "language")
        if isinstance(value, tuple) and not hasattr(value, node.attr):
            why = "begin with tl.zeros and add to it, or give each value a name of its own"
            raise self.fault(f"a list in a kernel stays as it was made, without .{node.attr}", "language", why)
        return getattr(value, node.attr)

    def of_module(self, module: types.ModuleType, name: str) -> Any:
        """Return what a module of Python's has; of all modules a kernel may call functions of `math` alone."""
        value, root = of_room(module, name), module.__name__.partition(".")[0]
        if isinstance(value, Room):
            return value.module
        if root == "math" or not callable(value) or isinstance(value, type | Kernel | ConstantFunction):
            return value
        raise self.foreign(f"{root}.{name}", name)

    def foreign(self, called: str, name: str) -> KernelFault:
        """Return the error for a call of a function that Triton does not know."""
        known = {"relu": "tl.maximum(x, 0)", "power": "x * x", "tanh": "tl.extra.libdevice.tanh"}
        here = f"tl.{name}" if hasattr(tl, name) else known.get(name, "what it does with functions of tl")
        return self.fault(f"{called} is no function of a kernel: write {here}", "language")

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        return self.operate(node.op, self.visit(node.left), self.visit(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        return self.operate(node.op, self.visit(node.operand))

    def operate(self, op: ast.AST, *values: Any) -> Any:
        symbol, compute = _OPERATORS[type(op)]
        if any(map(_is_runtime, values)) and any(value is None or isinstance(value, str) for value in values):
            raise self.fault(f"`{symbol}` of {' and '.join(map(_said, values))}", "types")
        return compute(*values)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        word = "and" if isinstance(node.op, ast.And) else "or"
        return device.joined(word, *(functools.partial(self.visit, one) for one in node.values))

    def visit_Compare(self, node: ast.Compare) -> Any:
        values = [self.visit(one) for one in (node.left, *node.comparators)]
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Is | ast.IsNot):
            return (values[0] is values[1]) == isinstance(node.ops[0], ast.Is)
        if not all(type(one) in COMPARISONS for one in node.ops):
            raise self.fault("Triton's language compares by < <= > >= == != and `is None`", "language")
        return device.chained(tuple(COMPARISONS[type(one)] for one in node.ops), *values)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        condition = self.visit(node.test)
        if not _is_runtime(condition):
            return self.visit(node.body if condition else node.orelse)
        self.single(condition, "if")
        first, second = (as_block(value) if not isinstance(value, Pointer) else value
                         for value in (self.visit(node.body), self.visit(node.orelse)))  # fmt: skip
        if _kind(first) != _kind(second):
            what = f"`… if … else …` gives {_said(first)} or {_said(second)}"
            raise self.fault(what, "types", "both must have one type and shape: choose by tl.where, or by `if`")
        return first

    # ---- calls

    def visit_Call(self, node: ast.Call) -> Any:
        function = self.visit(node.func)
        args = list(self.arguments(node.args))
        options = {str(one.arg): self.visit(one.value) for one in node.keywords}
        if function is constexpr:
            return constant(args[0], "what tl.constexpr holds")
        if isinstance(function, Kernel | ConstantFunction) or self.is_ours(function):
            return function(*args, **options)
        name = getattr(function, "__name__", str(function))
        if getattr(function, "__module__", "") == "math":
            if any(map(_is_runtime, args)):
                raise self.foreign(f"math.{name}", name)
            return function(*args, **options)
        if inspect.isfunction(function):
            why = f"write @triton.jit in the line above `def {name}`"
            raise self.fault(f"{name} is a function of Python, and a kernel calls kernels alone", "language", why)
        return function(*args, **options)

    def arguments(self, nodes: Sequence[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self.visit(node.value)
            else:
                yield self.visit(node)

    @staticmethod
    def is_ours(function: Any) -> bool:
        """Return whether a function is of Triton's language: of tl, of a block, or of the few that Python lends."""
        owner = getattr(function, "__self__", None)
        home = getattr(function, "__module__", "") or ""
        ours = isinstance(owner, Block | DType) or home.startswith("kernelcheck.")
        return ours or _is_one_of(function, *IN_KERNELS.values())
