"""The backward pass of an own `torch.autograd.Function` does not use the gradient that it is given."""

import ast
import inspect
import textwrap
import weakref
from typing import Any

import torch

from simgpu.ground import places
from simgpu.ground.nodes import graph_nodes, graph_of
from simgpu.reports import events
from simgpu.reports.rule import LOOKED_AT, Rule

_MOST_NODES = 5000  # of a graph in which functions are looked for


class GradientBehindIsIgnored(Rule, about="result", often="twice"):
    text = (
        "This backward pass does not use the gradient that it is given, so that it ignores all that comes behind the "
        "function. Multiply what it returns by it."
    )
    cure = "multiply by `grad_output`"

    def begin(self) -> None:
        self._lines: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()  # by function; "": sound

    def on_backward(self, event: events.Backward) -> None:
        if self.program.step >= LOOKED_AT:
            return
        for node in graph_nodes((graph_of(one) for one in event.roots), most=_MOST_NODES):
            function = getattr(type(node), "_forward_cls", None)
            if function is not None and self._line(function):
                node.register_prehook(lambda gradients, line=self._lines[function]: self._given(gradients, line))

    def _line(self, function: type) -> str:
        if function not in self._lines:
            self._lines[function] = _line_of_unused(function)
        return self._lines[function]

    def _given(self, gradients: Any, line: str) -> None:
        """Note a function whose gradient is not that of a loss by itself, which is 1."""
        given = [one for one in gradients if isinstance(one, torch.Tensor)]
        if any(one.dim() for one in given):
            self.note(line)


def _line_of_unused(function: type) -> str:
    """Return the line of a backward pass that returns something, and reads none of the gradients that it is given."""
    backward = vars(function).get("backward")
    code = getattr(getattr(backward, "__func__", None), "__code__", None)
    if code is None or not places.is_readers(code.co_filename, code.co_name):
        return ""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError):
        return ""
    if not isinstance(tree, ast.FunctionDef):
        return ""
    arguments = {one.arg for one in [*tree.args.args[1:], *filter(None, [tree.args.vararg])]}
    read = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    returns = [one for one in ast.walk(tree) if isinstance(one, ast.Return) and one.value is not None]
    made = [one for one in returns if any(isinstance(inner, ast.Name) for inner in ast.walk(one))]
    return places.named(code.co_filename, first + made[-1].lineno - 1) if made and not arguments & read else ""
