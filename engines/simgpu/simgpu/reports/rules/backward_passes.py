"""Rules on a backward pass, and on what comes between it and a step."""

import weakref
from typing import Any

import torch
from torch import nn

from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.calls import Mark
from simgpu.reports.program import is_set
from simgpu.reports.rule import Rule


class BackwardTwice(Rule, about="result", often="twice"):
    """`backward()` runs twice from the same loss, so its gradients count twice."""

    text = (
        "This is the second backward pass from the same loss before a step, and its gradients add to those of the "
        "first, so that they count twice. Leave one out."
    )
    cure = "call it once"

    def begin(self) -> None:
        self._mark: weakref.ref[Mark] | None = None  # of the loss of the last backward pass

    def on_backward(self, event: events.Backward) -> None:
        node: Any = graph_of(event.roots[0]) if len(event.roots) == 1 and not event.roots[0].dim() else None
        known = None if node is None else node.metadata.get(__name__)
        if known is not None and self._mark is not None and self._mark() is known and not event.creates:
            self.note()
        elif node is not None and not event.creates:
            node.metadata[__name__] = mark = Mark()
            self._mark = weakref.ref(mark)

    def on_clear(self, event: events.Clear) -> None:
        self._mark = None

    def on_updated(self, event: events.Updated) -> None:
        self._mark = None


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

    text = (
        "This clears the gradients between `backward()` and `step()`, so the step changes nothing. Clear them before "
        "`backward()`."
    )
    cure = "clear them before `backward()`"

    def on_update(self, event: events.Update) -> None:
        if self.program.clear_line and not any(is_set(one.grad) for one in event.parameters):
            self.note(self.program.clear_line)
