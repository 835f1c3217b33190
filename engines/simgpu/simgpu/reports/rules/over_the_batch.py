"""Rules on what goes over the dimension of the batch, and is meant to go over another one."""

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from simgpu.ground import places
from simgpu.ground.nodes import graph_nodes, graph_of
from simgpu.reports import events
from simgpu.reports.program import Program
from simgpu.reports.rule import Rule, behind_views

_MOST_NODES = 2000  # of a graph, that are walked
_KEEPS_ROWS = ("View", "UnsafeView", "Expand", "ToCopy", "Mul", "NativeDropout")  # dropout multiplies


class SoftmaxOverTheBatch(Rule, about="result", often="each step"):
    """Softmax goes over the dimension of the batch, or of positions, and not over that of the classes."""

    text = (
        "This softmax goes over dimension 0, that of the batch, so that the samples of a batch share one sum. Name the "
        "dimension of the classes, or of the keys: mostly `dim=-1`."
    )
    other = (
        "This softmax goes over dimension {over} of its scores, and the loss takes dimension {classes} for that of the "
        "classes. Give both the same: mostly `dim=-1` before a `transpose`."
    )
    pooled = (
        "This softmax goes over dimension 0, that of the batch, and its weights are those of a sum over another "
        "dimension, so that those of a sample do not add up to 1. Name the dimension of that sum."
    )
    heads = (
        "This softmax goes over dimension {over} of its scores, and a product sums over the last one, as over the keys "
        "of attention, so that the weights of a query do not add up to 1. Name the last dimension: `dim=-1`."
    )
    cure = "`dim=-1`"

    def begin(self) -> None:
        self._line = ""  # of the last softmax over dimension 0
        self._lines: dict[tuple[torch.Size, int], str] = {}  # of the last one of such scores, by their dimension
        self._pools: dict[torch.Size, str] = {}  # lines of those over dimension 0 in a model, of a row for each sample
        self._heads: dict[tuple[torch.Size, int], str] = {}  # lines of those over one between that and the last two

    def on_softmax(self, event: events.Softmax) -> None:
        """Note scores of classes behind the model, or in it of all pairs of positions of each sample."""
        shape, rows = event.scores.shape, _rows(self.program)
        self._lines[shape, event.dim] = place = places.place()
        self._line = self._line if event.dim else place
        if 0 < event.dim < len(shape) - 2 and torch.is_grad_enabled():
            self._heads[shape, event.dim] = place
        if event.dim or rows < 2 or shape[0] != rows or not torch.is_grad_enabled():
            return
        is_attention = len(shape) > 2 and shape[-1] == shape[-2] > 1 and rows != shape[-1]
        if is_attention or (len(shape) == 2 and shape[1] > 1 and rows != shape[1] and not self.program.running):
            self.note()
        elif self.program.running:
            self._pools[shape] = place

    def on_backward(self, event: events.Backward) -> None:
        """Note a softmax over the batch that weights a sum over another dimension, as in attention that pools."""
        for node in graph_nodes(map(graph_of, event.roots), most=_MOST_NODES) if self._pools or self._heads else ():
            of_sum, factors = node.name() == "SumBackward1", node.name() == "BmmBackward0" and node
            if factors and self._heads:
                self._look_for_heads(node)
            sizes, dims = (getattr(node, f"_saved_{name}", ()) for name in ("self_sym_sizes", "dim"))
            if of_sum and not any(dim in (0, 2**64 - len(sizes)) for dim in dims):
                factors = node.next_functions[0][0]
            for factor, _ in factors.next_functions if factors and factors.name().startswith(("Mul", "Bmm")) else ():
                weights, name = behind_views(factor)
                shape = _shape(weights) if name.startswith("Softmax") else None
                if shape is not None and shape in self._pools and _at(weights, "_saved_dim", len(shape)) == 0:
                    self.note(self._pools[shape], self.pooled)
        self._pools.clear()
        self._heads.clear()

    def _look_for_heads(self, product: Any) -> None:
        """Note a softmax over a dimension that goes through a product which sums over its last one."""
        node = product.next_functions[0][0]
        while node is not None and node.name().startswith(_KEEPS_ROWS):
            node, *others = (one for one, _ in node.next_functions)
            node = None if any(others) else node
        shape = _shape(node) if node is not None and node.name().startswith("SoftmaxBackward") else None
        line = "" if shape is None else self._heads.get((shape, _at(node, "_saved_dim", len(shape))), "")
        factor = getattr(product, "_saved_self", None) if line else None
        if shape is not None and factor is not None and shape[-2] > 1 and factor.shape[-2:] == shape[-2:]:
            self.note(line, self.heads.format(over=_at(node, "_saved_dim", len(shape))))

    def on_loss(self, event: events.Loss) -> None:
        """Note what a loss gets that has one target for each row, or for some that it picks."""
        node, rows = graph_of(event.scores), event.scores.shape[0] if event.scores.dim() == 2 else 0
        while node is not None and node.name().startswith(("LogBackward", "Index")):
            node = node.next_functions[0][0]
        is_softmax = node is not None and node.name().startswith(("LogSoftmax", "Softmax"))
        if rows > 1 and is_softmax and _at(node, "_saved_dim", 2) == 0 and self._line and event.name != "kl_div":
            self.note(self._line)
        if event.name == "nll_loss" and event.scores.dim() > 1:
            self._compare(event.scores)

    def _compare(self, scores: torch.Tensor) -> None:
        """Note the softmax that made what a loss gets, where it went over another dimension than the loss does.

        Between the two may stand `transpose`, `log`, and a `view` that joins the dimensions before the classes.
        """
        node, classes, count = graph_of(scores), 1, scores.shape[1]
        while node is not None and not node.name().startswith(("LogSoftmax", "Softmax")):
            if node.name().startswith("Transpose"):
                pair = [_at(node, f"_saved_dim{i}", scores.dim()) for i in range(2)]
                classes = pair[1 - pair.index(classes)] if classes in pair else classes
            elif node.name().startswith(("View", "UnsafeView")) and scores.dim() == 2:
                sizes = getattr(node, "_saved_self_sym_sizes", ())
                if not sizes or sizes[-1] != count:
                    return
                classes = len(sizes) - 1
            elif not node.name().startswith("LogBackward"):
                return
            node = node.next_functions[0][0]
        shape = None if node is None else _shape(node, scores)
        if shape is None:
            return
        over = _at(node, "_saved_dim", len(shape))
        line = self._lines.get((shape, over), "")
        if len(shape) > 2 and over != classes and shape[classes] == count and line:
            self.note(line, self.other.format(over=over, classes=classes))


class BatchTakenForTime(Rule, about="result", often="twice"):
    """A recurrent layer, or one of attention, goes over the samples of a batch as over moments of a sequence."""

    text = (
        "This layer goes over dimension 0 of its input as over the moments of a sequence, and those are the samples of "
        "the batch: each result depends on the other samples. Write `batch_first=True` where the layer is made."
    )
    cure = "`batch_first=True`"

    def begin(self) -> None:
        self._lines: dict[str, int] = {}  # that call such layers with all rows of a model's input: how many

    def on_forward(self, event: events.Forward) -> None:
        layer, given = event.module, next(iter((*event.args, *event.kwargs.values())), None)
        by_time = isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and not layer.batch_first
        rows, others = given.shape[:2] if by_time and isinstance(given, torch.Tensor) and given.dim() == 3 else (0, 0)
        if rows != others > 1 and rows == _rows(self.program):
            self._lines[places.place()] = rows

    def on_loss(self, event: events.Loss) -> None:
        self._compare(event.scores, event.target)

    def on_difference(self, event: events.Difference) -> None:
        self._compare(event.first, event.second if event.first.numel() == event.second.numel() else None)

    def _compare(self, made: torch.Tensor, target: Any) -> None:
        """Note layers that go over as many rows as there are targets: one of each sample."""
        if graph_of(made) is not None and isinstance(target, torch.Tensor) and not target.requires_grad:
            for line, rows in self._lines.items():
                if made.shape[:1] == target.shape[:1] == (rows,) and target.numel() == rows:
                    self.note(line)
            self._lines.clear()


def _rows(program: Program) -> int:
    """Return how many samples the model gets that runs, or the last one has got."""
    if not program.running:
        return program.samples
    first = next((one for one in tree_leaves(program.inputs) if isinstance(one, torch.Tensor)), None)
    return first.shape[0] if first is not None and first.dim() else 0


def _at(node: Any, name: str, dims: int) -> int:
    """Return a dimension that a node has saved, from 0; PyTorch shows one from the end as a number below 2**64."""
    saved = getattr(node, name)
    return (saved - 2**64 if saved >= 2**63 else saved) % dims


def _shape(node: Any, scores: Any = None) -> torch.Size | None:
    """Return the shape of what a softmax has returned, or of scores; None where a backward pass has freed it."""
    try:
        return getattr(node, "_saved_result", scores).shape
    except RuntimeError:
        return None
