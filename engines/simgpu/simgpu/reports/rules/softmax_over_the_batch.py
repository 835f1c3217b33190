"""Softmax over the dimension of the batch mixes the samples."""

import torch
from torch.utils._pytree import tree_leaves

from simgpu.ground import places
from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.rule import Rule


class SoftmaxOverTheBatch(Rule, about="result", often="each step"):
    text = (
        "This softmax goes over dimension 0, that of the batch, so that the samples of a batch share one sum. Name the "
        "dimension of the classes, or of the keys: mostly `dim=-1`."
    )
    cure = "`dim=-1`"

    def begin(self) -> None:
        self._samples = 0  # that the last model got
        self._line = ""  # of the last softmax over dimension 0

    def on_called(self, event: events.Called) -> None:
        self._samples = event.call.samples

    def on_softmax(self, event: events.Softmax) -> None:
        """Note scores of classes behind the model, or in it of all pairs of positions of each sample."""
        shape, rows = event.scores.shape, self._rows()
        self._line = self._line if event.dim else places.place()
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

    def _rows(self) -> int:
        """Return how many samples the model gets that runs, or the last one has got."""
        if not self.program.running:
            return self._samples
        first = next((one for one in tree_leaves(self.program.inputs) if isinstance(one, torch.Tensor)), None)
        return first.shape[0] if first is not None and first.dim() else 0
