"""Rules on a backward pass, and on what comes between it and a step."""

import ast
import inspect
import textwrap
import weakref
from typing import Any

import torch
from torch import nn

from simgpu.ground import places
from simgpu.ground.nodes import graph_nodes, graph_of, is_leaf
from simgpu.reports import events
from simgpu.reports.calls import Mark
from simgpu.reports.program import is_set
from simgpu.reports.rule import LOOKED_AT, Rule
from simgpu.reports.rules.accumulation import LOSSES

_MOST_NODES = 5000  # of a graph, that are looked at or marked


class BackwardTwice(Rule, about="result", often="twice", explains=("graph-kept-for-nothing",)):
    """`backward()` runs twice from the same loss, alone or in a sum, so its gradients count twice."""

    text = (
        "This is the second backward pass from the same loss, alone or in a sum, before a step, and its gradients add "
        "to those of the first, so that they count again. Let each loss have one."
    )
    cure = "call it once for each loss"

    def begin(self) -> None:
        self._marks: weakref.WeakSet[Mark] = weakref.WeakSet()  # of losses whose gradients wait for a step

    def on_backward(self, event: events.Backward) -> None:
        node: Any = graph_of(event.roots[0]) if len(event.roots) == 1 and not event.roots[0].dim() else None
        if node is None or event.creates:
            return
        parts, mark = graph_nodes([node], most=_MOST_NODES) if len(self._marks) else [], Mark()
        if any(one.metadata.get(__name__) in self._marks for one in parts):
            self.note()
        self._marks.add(mark)
        losses = [node]  # and those that it is a sum of
        for one in losses:
            name, below = one.name(), [inner for inner, _ in one.next_functions]
            if name.startswith("AddBackward") or (name.startswith(("MulBackward", "DivBackward")) and None in below):
                losses += filter(None, below)
            if one is node or name.startswith(LOSSES):
                one.metadata[__name__] = mark

    def on_clear(self, event: events.Event) -> None:
        self._marks.clear()

    on_updated = on_hand_step = on_clear


class BackwardUnderAutocast(Rule, about="result"):
    """The backward pass runs under autocast."""

    text = "The backward pass runs under autocast, which PyTorch advises against. End the `with` block after the loss."
    cure = "end the `with` block after the loss"

    def on_backward_end(self, event: events.BackwardEnd) -> None:
        if torch._C._is_any_autocast_enabled():
            self.note()


class BackwardWithoutModel(
    Rule, about="result", often="twice", explains=("optimizer-of-other-parameters", "forward-not-used")
):
    """The loss was made of a number, as by `torch.tensor(loss)`, so no gradient reaches a model."""

    text = (
        "This backward pass begins at a tensor that was made of a number, such as by `torch.tensor(loss)`, so no "
        "gradient reaches a model. Compute the loss from the model's result, by operations that have gradients."
    )
    cure = "compute it from the model's result"

    def on_backward(self, event: events.Backward) -> None:
        if len(event.roots) == 1:
            loss = event.roots[0]
            if loss.is_leaf and loss.numel() == 1 and loss.requires_grad and not isinstance(loss, nn.Parameter):
                self.note()


class GradientsClearedTooEarly(Rule, about="result", often="twice"):
    """Gradients are cleared between `backward()` and `step()`, so the step changes nothing."""

    text = "This clears gradients between `backward()` and `step()`, so the step changes nothing. Clear them earlier."
    cure = "clear them before `backward()`"

    def on_update(self, event: events.Update) -> None:
        if self.program.clear_line and not any(is_set(one.grad) for one in event.parameters):
            self.note(self.program.clear_line)


class GraphKeptForNothing(Rule, about="memory", often="each step"):
    """`retain_graph=True` keeps the activations of a step that no other backward pass uses."""

    text = (
        "`retain_graph=True` keeps the activations of this step, and no other backward pass uses them: they are still "
        "there while the next forward pass makes its own. Leave it out."
    )
    cure = "leave it out"

    def begin(self) -> None:
        self._retained: tuple[str, weakref.ref[Mark]] | None = None  # the last graph that was kept, by its line

    def on_backward(self, event: events.Backward) -> None:
        self._look()
        node = graph_of(event.roots[0]) if len(event.roots) == 1 else None
        if node is not None and event.retains and not event.creates:
            self._retained = places.place(), weakref.ref(_mark(node))

    def on_forward(self, event: events.Forward) -> None:
        """Forget a graph that has gone before the next forward pass: it has kept nothing."""
        if self._retained is not None and self._retained[1]() is None:
            self._retained = None

    def on_grad(self, event: events.Grad) -> None:
        self._look()

    def _look(self) -> None:
        """Note a graph that was kept if it has gone without another backward pass."""
        if self._retained is not None and self._retained[1]() is None:
            self.note(self._retained[0])
        self._retained = None


def _mark(node: Any) -> Mark:
    """Mark a node and those behind it, so that another loss of the same layers keeps the mark alive."""
    mark = Mark()
    for inner in graph_nodes([node], most=_MOST_NODES):
        if not is_leaf(inner):  # which may live longer than any graph
            inner.metadata[f"{__name__}.kept"] = mark
    return mark


class GradientBehindIsIgnored(Rule, about="result", often="twice"):
    """The backward pass of an own `torch.autograd.Function` does not use the gradient that it is given."""

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
    code = getattr(getattr(vars(function).get("backward"), "__func__", None), "__code__", None)
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
