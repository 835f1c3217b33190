"""Rules on what a loss is given."""

import weakref

import torch
from torch import nn

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.rule import LOOKED_AT, LossRule, Rule, behind_views

_ROUNDED = 1e-3  # above 0: more is no rounded logarithm of a probability


class LossOfAllPairs(Rule, about="result", often="each step"):
    """Predictions of shape (N, 1) and targets of shape (N,) become N × N differences."""

    text = (
        "Shapes (N, 1) and (N,) broadcast to (N, N), here or before: every prediction is compared with every target. "
        "Give both the same shape, as by `.squeeze(1)`."
    )
    cure = "`.squeeze(1)`"

    def on_difference(self, event: events.Difference) -> None:
        one, other = event.first, event.second
        result, target = (one, other) if one.requires_grad else (other, one)
        rows = self.program.samples
        if graph_of(result) is None or target.requires_grad or rows < 2:
            return
        shapes = {tuple(result.shape), tuple(target.shape)}
        if shapes == {(rows, 1), (rows,)} or (event.is_loss and shapes == {(rows, rows), (rows,)}):
            self.note()


class PaddingInLoss(Rule, about="result", often="twice"):
    """The loss counts targets that are padding for the model's embedding."""

    text = (
        "The model's `nn.Embedding` takes one token for padding (`padding_idx`), and this loss counts targets that are "
        "this token. Give it the same number as `ignore_index`."
    )
    cure = "`ignore_index=padding_idx`"

    def begin(self) -> None:
        self._padding: weakref.WeakKeyDictionary[nn.Embedding, int] = weakref.WeakKeyDictionary()  # of each: tokens

    def on_forward(self, event: events.Forward) -> None:
        if isinstance(event.module, nn.Embedding) and event.module.padding_idx is not None:
            self._padding[event.module] = event.module.num_embeddings

    def on_loss(self, event: events.Loss) -> None:
        looks = self.program.step < LOOKED_AT and event.reduces and event.name != "binary_cross_entropy_with_logits"
        targets = values_of(event.target) if looks and isinstance(event.target, torch.Tensor) else None
        if state.world.only_shapes or type(targets) is not torch.Tensor or targets.is_floating_point():
            return
        classes = event.scores.shape[1 if event.scores.dim() > 1 else 0]
        known = {one.padding_idx for one, tokens in self._padding.items() if tokens == classes}
        known = {one for one in known if event.weights is None or values_of(event.weights)[one]}
        if known and event.ignored not in known and bool(torch.isin(targets, torch.tensor([*known])).any()):
            self.note()


class ProbabilitiesWithoutLogarithm(LossRule, about="result"):
    """`nll_loss` or `kl_div` takes probabilities, or scores, for logarithms of probabilities."""

    text = (
        "This loss takes what it gets for logarithms of probabilities, and gets numbers above 0: probabilities, or "
        "scores. The model learns slowly, or something else. Give it the result of `log_softmax`."
    )
    cure = "`log_softmax` before it"

    def on_loss(self, event: events.Loss) -> None:
        """Note probabilities, and numbers above 0, which no logarithm of a probability is."""
        node, values = behind_views(graph_of(event.scores))[1], values_of(event.scores).detach()
        known = node and self.program.step < LOOKED_AT and not state.world.only_shapes and type(values) is torch.Tensor
        above = node.startswith("SoftmaxBackward") or (known and bool((values > _ROUNDED).any()))
        if event.name in ("nll_loss", "kl_div") and above:
            self.note()


class SigmoidBeforeLoss(LossRule, about="result"):
    """A loss that squashes its scores gets the numbers of a sigmoid."""

    text = "This loss squashes the numbers of a sigmoid once more, so the model learns slowly. Give it the scores."
    cure = "give the loss the scores"

    def on_loss(self, event: events.Loss) -> None:
        squashes = event.name not in ("nll_loss", "kl_div")
        if squashes and behind_views(graph_of(event.scores))[1].startswith("SigmoidBackward"):
            self.note()


class SoftmaxBeforeCrossEntropy(LossRule, about="result"):
    """Softmax is applied twice, and the model learns slowly."""

    text = (
        "`cross_entropy` gets probabilities and applies softmax once more, so the model learns slowly. Give it the "
        "logits, without softmax."
    )
    cure = "give the loss the logits"

    def on_loss(self, event: events.Loss) -> None:
        if event.name != "cross_entropy":
            return
        _, by = behind_views(graph_of(event.scores))
        looked_at = self.program.step < LOOKED_AT and not by.startswith("SigmoidBackward")
        if by.startswith("SoftmaxBackward") or (looked_at and _are_probabilities(event.scores)):
            self.note()


def _are_probabilities(scores: torch.Tensor) -> bool:
    """Return whether the scores of each sample are at least 0 and sum to 1; nothing is asked of a GPU."""
    values = values_of(scores).detach()
    if state.world.only_shapes or type(values) is not torch.Tensor or not values.numel() or values.dim() == 0:
        return False
    sums = values.sum(1 if values.dim() > 1 else 0, dtype=torch.float64)
    return bool((values >= 0).all()) and bool((sums - 1).abs().max() < 1e-2)


class TargetsAllIgnored(Rule, about="result"):
    """`ignore_index` hides all targets of a batch, so the loss is NaN."""

    text = (
        "`ignore_index` hides all targets of this batch: nothing is learned from it, and a mean over no target is NaN. "
        "Look at what the targets are, and at what is to be ignored."
    )
    cure = "check the targets"

    def on_loss(self, event: events.Loss) -> None:
        targets = values_of(event.target) if isinstance(event.target, torch.Tensor) else None
        if state.world.only_shapes or type(targets) is not torch.Tensor or self.program.step >= LOOKED_AT:
            return
        if not targets.is_floating_point() and targets.numel() and bool((targets == event.ignored).all()):
            self.note()
