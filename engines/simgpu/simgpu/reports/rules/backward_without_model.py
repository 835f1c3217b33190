"""The loss was made of a number, as by `torch.tensor(loss)`, so no gradient reaches a model."""

from torch import nn

from simgpu.reports import events
from simgpu.reports.rule import Rule


class BackwardWithoutModel(
    Rule, about="result", often="twice", explains=("optimizer-of-other-parameters", "forward-not-used")
):
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
