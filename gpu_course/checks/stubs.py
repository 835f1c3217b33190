"""Stubs of exercises, written from their references: the cell in which a reader writes an answer."""

import ast
from collections.abc import Iterator
from pathlib import Path

from gpu_course.checks.answers import Edit, read

__all__ = ["stub"]

_CELL_COLUMNS = 88
_RAISES = "raise NotImplementedError"


def stub(module: Path, name: str) -> str:
    """Return the stub of an exercise from its module: each body is `raise NotImplementedError`.

    Where the task is a repair, it is the broken program, which stands with the answers beside the module.
    """
    text = module.read_text(encoding="utf-8")
    tree = ast.parse(text)
    (node,) = (one for one in tree.body if getattr(one, "name", "") == name)
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    for row in read(module.with_name(f"{name}.diff")).rows:
        if row.kind == "broken" and isinstance(row.answers[0], Edit):
            source = "".join(text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno])
            return row.answers[0].applied(source, name).rstrip()
    described = ast.get_source_segment(text, node.body[0])
    if isinstance(node, ast.FunctionDef):
        return "\n".join([*_signature(text, node, ""), f"    {described}", f"    {_RAISES}"])
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    lines = [f"class {name}{bases}:", f"    {described}"]
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and (method.name.startswith("__") or not method.name.startswith("_")):
            lines += ["", *_signature(text, method, "    "), f"        {_RAISES}"]
    return "\n".join(lines)


def _signature(text: str, node: ast.FunctionDef, indent: str) -> list[str]:
    """Return the lines of a signature, as the formatter lays them out in a cell."""
    result = f" -> {ast.get_source_segment(text, node.returns)}" if node.returns else ""
    head, tail, parts = f"{indent}def {node.name}(", f"){result}:", list(_parameters(text, node.args))
    if len(line := head + ", ".join(parts) + tail) <= _CELL_COLUMNS:
        return [line]
    if len(line := f"{indent}    {', '.join(parts)}") <= _CELL_COLUMNS:
        return [head, line, indent + tail]
    return [head, *(f"{indent}    {part}," for part in parts), indent + tail]


def _parameters(text: str, args: ast.arguments) -> Iterator[str]:
    """Yield the parameters as they are written, with their defaults, and the marks between them."""
    named = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(named) - len(args.defaults)) + args.defaults
    for at, (one, default) in enumerate(zip(named, defaults, strict=True), start=1):
        yield _parameter(text, one, default)
        if at == len(args.posonlyargs):
            yield "/"
    if args.vararg or args.kwonlyargs:
        yield f"*{ast.get_source_segment(text, args.vararg)}" if args.vararg else "*"
    for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield _parameter(text, one, default)
    if args.kwarg:
        yield f"**{ast.get_source_segment(text, args.kwarg)}"


def _parameter(text: str, one: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return str(ast.get_source_segment(text, one))
    equals = " = " if one.annotation else "="
    return f"{ast.get_source_segment(text, one)}{equals}{ast.get_source_segment(text, default)}"
