"""Text of a kernel, and its translation into Python that computes as Triton does.

Triton's language looks like Python and differs in four places. A number that is given a name becomes a number of the
device: after `half = BLOCK // 2` it is no constant any more. `and`, `or`, `not` and chains of comparisons work on
blocks, element by element. Loops are counted, so that one without an end is found. And names mean what Triton means.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kernelcheck.faults import KernelFault

# What the changed text calls; no kernel can have such names.
AND, OR, NOT, CHAIN, NUMBER, WHILE, FOR = "@and", "@or", "@not", "@chain", "@number", "@while", "@for"
VALUE = "@value"
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """The text of a kernel: its function, whose lines are those of its file, and the code that Python runs instead."""

    function: ast.FunctionDef
    file: str
    code: types.CodeType

    def codes(self) -> Iterator[types.CodeType]:
        """Yield the code and those of the expressions in it that are evaluated later, or not at all."""
        waiting = [self.code]
        while waiting:
            yield (code := waiting.pop())
            waiting += [one for one in code.co_consts if isinstance(one, types.CodeType)]


def text_of(function: Callable[..., Any]) -> Text:
    """Return the text of a function. Raises `KernelFault` where nothing has kept it."""
    return _text(function.__code__)


@functools.cache
def _text(code: types.CodeType) -> Text:
    try:
        lines, first = inspect.getsourcelines(code)
        function = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError):
        why = "Triton reads it from the file or the cell with the kernel"
        raise KernelFault("language", f"the text of {code.co_name} is not to be found: {why}") from None
    if not isinstance(function, ast.FunctionDef):
        raise KernelFault("language", f"{code.co_name} is not a function that begins with def")
    ast.increment_lineno(function, first - 1)
    changed = ast.fix_missing_locations(_AsTriton().visit(copy.deepcopy(function)))
    module = compile(ast.Module([changed], []), code.co_filename, "exec", dont_inherit=True)
    runs = next(one for one in module.co_consts if isinstance(one, types.CodeType) and one.co_name == function.name)
    return Text(function, code.co_filename, runs)


def is_constexpr(annotation: object) -> bool:
    """Return whether an annotation, in a text or as a value, is tl.constexpr."""
    return "constexpr" in (ast.unparse(annotation) if isinstance(annotation, ast.AST) else str(annotation))


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _later(value: ast.expr) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(nothing, value)


class _AsTriton(ast.NodeTransformer):
    """Changes a function so that Python computes what Triton would; what Triton refuses may stay as it is."""

    def __init__(self) -> None:
        self._constants: set[str] = set()  # names that were annotated with tl.constexpr before they got a value

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        self.generic_visit(node)
        (target, *_) = node.targets
        if not (isinstance(target, ast.Name) and target.id in self._constants):
            node.value = _call(NUMBER, node.value)
        return ast.copy_location(node, node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name):
            return node
        value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        made = ast.Assign([node.target], ast.copy_location(value, node))
        return self.visit_Assign(ast.copy_location(made, node))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            if is_constexpr(node.annotation) and isinstance(node.target, ast.Name):
                self._constants.add(node.target.id)
            return ast.copy_location(ast.Pass(), node)
        made = ast.copy_location(ast.Assign([node.target], node.value), node)
        return self.generic_visit(made) if is_constexpr(node.annotation) else self.visit_Assign(made)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        self.generic_visit(node)
        node.value = _call(NUMBER, node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(_call(AND if isinstance(node.op, ast.And) else OR, *map(_later, node.values)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(_call(NOT, node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        names = [COMPARISONS[type(one)] for one in node.ops if type(one) in COMPARISONS]
        if len(node.ops) == 1 or len(names) < len(node.ops):
            return node
        known = ast.Tuple([ast.Constant(name) for name in names], ast.Load())
        return ast.copy_location(_call(CHAIN, known, node.left, *node.comparators), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(_call(VALUE, node.value), node) if node.attr == "value" else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return ast.copy_location(_call(VALUE, node), node) if name == "constexpr" else node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        node.test = ast.copy_location(_call(WHILE, ast.Constant(node.lineno), node.test), node.test)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.copy_location(_call(FOR, node.iter), node.iter)
        return node
