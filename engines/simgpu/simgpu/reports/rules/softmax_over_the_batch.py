"""Softmax goes over the dimension of the batch, or of positions, and not over that of the classes."""

from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from simgpu.ground import places
from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.rule import Outcome, Rule, Suspect


class SoftmaxOverTheBatch(Rule, about="result", often="each step"):
    text = (
        "This softmax goes over dimension 0, that of the batch, so that the samples of a batch share one sum. Name the "
        "dimension of the classes, or of the keys: mostly `dim=-1`."
    )
    other = (
        "This softmax goes over dimension {over} of its scores, and the loss takes dimension {classes} for that of the "
        "classes. Give both the same: mostly `dim=-1` before a `transpose`."
    )
    cure = "`dim=-1`"

    def begin(self) -> None:
        self._samples = 0  # that the last model got
        self._line = ""  # of the last softmax over dimension 0
        self._lines: dict[tuple[torch.Size, int], str] = {}  # of the last one of such scores, by their dimension
        self._wrong: dict[str, tuple[int, int]] = {}  # by line: the dimension, and that of the classes

    def on_called(self, event: events.Called) -> None:
        self._samples = event.call.samples

    def on_softmax(self, event: events.Softmax) -> None:
        """Note scores of classes behind the model, or in it of all pairs of positions of each sample."""
        shape, rows = event.scores.shape, self._rows()
        self._lines[shape, event.dim] = place = places.place()
        self._line = self._line if event.dim else place
        if event.dim or rows < 2 or shape[0] != rows or not torch.is_grad_enabled():
            return
        is_attention = len(shape) > 2 and shape[-1] == shape[-2] > 1 and rows != shape[-1]
        if is_attention or (len(shape) == 2 and shape[1] > 1 and rows != shape[1] and not self.program.running):
            self.note()

    def on_loss(self, event: events.Loss) -> None:
        """Note what a loss gets that has one target for each row."""
        node, rows = graph_of(event.scores), event.scores.shape[0] if event.scores.dim() == 2 else 0
        while node is not None and node.name().startswith("Log") and not hasattr(node, "_saved_dim"):
            node = node.next_functions[0][0]
        if rows > 1 and getattr(node, "_saved_dim", None) == 0 and self._line:
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
        if node is None:
            return
        try:
            shape = getattr(node, "_saved_result", scores).shape
        except RuntimeError:  # a backward pass has freed it
            return
        over = _at(node, "_saved_dim", len(shape))
        line = self._lines.get((shape, over), "")
        if len(shape) > 2 and over != classes and shape[classes] == count and line:
            self._wrong[line] = over, classes
            self.note(line)

    def suspect(self, line: str, outcome: Outcome) -> Suspect | None:
        said, wrong = super().suspect(line, outcome), self._wrong.get(line)
        return said and (
            said if wrong is None else replace(said, text=self.other.format(over=wrong[0], classes=wrong[1]))
        )

    def _rows(self) -> int:
        """Return how many samples the model gets that runs, or the last one has got."""
        if not self.program.running:
            return self._samples
        first = next((one for one in tree_leaves(self.program.inputs) if isinstance(one, torch.Tensor)), None)
        return first.shape[0] if first is not None and first.dim() else 0


def _at(node: Any, name: str, dims: int) -> int:
    """Return a dimension that a node has saved, from 0; PyTorch shows one from the end as a number below 2**64."""
    saved = getattr(node, name)
    return (saved - 2**64 if saved >= 2**63 else saved) % dims
