"""Softmax is applied twice, and the model learns slowly."""

import torch

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.reports import events
from simgpu.reports.rule import LOOKED_AT, Rule, made_by


class SoftmaxBeforeCrossEntropy(Rule, about="result"):
    text = (
        "`cross_entropy` gets probabilities and applies softmax once more, so the model learns slowly. Give it the "
        "logits, without softmax."
    )
    cure = "give the loss the logits"

    def on_loss(self, event: events.Loss) -> None:
        if event.name != "cross_entropy":
            return
        by = made_by(event.scores)
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
