"""Gradients are computed of a model that no optimizer trains."""

from dataclasses import dataclass

import torch
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from simgpu.reports import events
from simgpu.reports.calls import Pass
from simgpu.reports.program import alive, version
from simgpu.reports.rule import Rule


@dataclass
class _Left:
    """The gradient of a parameter after a backward pass; `stays`: that of the step before was still there then."""

    gradient: TensorWeakRef | None
    version: int
    step: int
    stays: bool = False

    @classmethod
    def of(cls, parameter: torch.Tensor, step: int, stays: bool = False) -> "_Left":
        gradient = parameter.grad
        return cls(None, 0, step) if gradient is None else cls(TensorWeakRef(gradient), version(gradient), step, stays)

    def is_in(self, parameter: torch.Tensor) -> bool:
        """Return whether the gradient is there as it was left."""
        gradient = None if self.gradient is None else self.gradient()
        return gradient is not None and parameter.grad is gradient and version(gradient) == self.version


class GradientsNotUsed(Rule, about="time", often="each step"):
    text = (
        "The backward pass computes gradients of this model's weights, and no optimizer uses them. Write "
        "`with torch.no_grad():` around a teacher, or call `requires_grad_(False)` of the model once."
    )
    cure = "`torch.no_grad()`, or `model.requires_grad_(False)`"

    def begin(self) -> None:
        self._untrained: list[Pass] = []  # of models that no optimizer trains
        self._left = WeakIdKeyDictionary()  # by a parameter of these: its gradient after the last backward pass

    def on_judging(self, event: events.Judging) -> None:
        """Note calls of the step before: a program that trains their models by hand has done so meanwhile.

        One that changes the weights and never clears the gradients, as of a teacher that is averaged, uses none.
        """
        for call in self._untrained:
            if self._gets_gradients(call):
                self.note(call.line)
        self._untrained = []

    def on_judged(self, event: events.Judged) -> None:
        if event.call.used and not event.trained:
            self._untrained.append(event.call)
            parameter = self._sample(event.call)
            if parameter is not None and parameter not in self._left:
                self._left[parameter] = _Left.of(parameter, self.program.step)

    def on_backward(self, event: events.Backward) -> None:
        for parameter, left in self._left.items():
            if left.step != self.program.step:
                left.stays = left.is_in(parameter)

    def on_backward_end(self, event: events.BackwardEnd) -> None:
        for parameter, left in list(self._left.items()):
            self._left[parameter] = _Left.of(parameter, self.program.step, left.stays)

    def _sample(self, call: Pass) -> torch.Tensor | None:
        """Return the first parameter of a model that has a gradient."""
        parameters = alive(self.program.parts(call.model).parameters)
        return next((one for one in parameters if one.grad is not None), None)

    def _gets_gradients(self, call: Pass) -> bool:
        """Return whether a backward pass has left gradients in a model whose weights are as they were."""
        parameter = self._sample(call)
        weight, before = call.given[-1][0](), call.given[-1][1]
        unchanged = weight is not None and version(weight) == before
        return parameter is not None and (unchanged or (parameter in self._left and self._left[parameter].stays))
