"""Gradients are computed of a model, or a part of one, that no optimizer trains."""

import weakref
from dataclasses import dataclass

import torch
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from simgpu.reports import events
from simgpu.reports.calls import Pass
from simgpu.reports.program import alive, version
from simgpu.reports.rule import Outcome, Rule

_WORTH = 0.1  # of a model's numbers


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
    partly = (
        "The backward pass computes gradients of {numbers:,} of this model's {of:,} numbers that no optimizer has. "
        "Call `requires_grad_(False)` of them; if they are to learn, give them to the optimizer."
    )
    cure = "`torch.no_grad()`, or `model.requires_grad_(False)`"

    def begin(self) -> None:
        self._untrained: list[Pass] = []  # of models that no optimizer trains
        # by line, of models that only a part of is trained: a parameter with its version, and sizes
        self._parts: dict[str, tuple[weakref.ref[torch.Tensor], int, int, int]] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._left = WeakIdKeyDictionary()  # by a parameter of these: its gradient after the last backward pass

    def on_judging(self, event: events.Judging) -> None:
        """Note calls of the step before: a program that trains their models by hand has done so meanwhile.

        One that changes the weights and never clears the gradients, as of a teacher that is averaged, uses none.
        """
        for call in self._untrained:
            if self._gets_gradients(call):
                self.note(call.line)
        for line, (reference, number, *sizes) in self._parts.items():
            sample = reference()
            if sample is not None and sample not in self.program.trained and version(sample) == number:
                self._sizes[line] = sizes[0], sizes[1]
                self.note(line)
        self._untrained, self._parts = [], {}

    def on_judged(self, event: events.Judged) -> None:
        if event.call.used and event.trained:
            all_of = list(alive(self.program.parts(event.call.model).parameters))
            idle = [one for one in all_of if one.grad is not None and one not in self.program.trained]
            numbers, of = (sum(one.numel() for one in some) for some in (idle, all_of))
            if idle and numbers >= _WORTH * of:
                self._parts[event.call.line] = weakref.ref(idle[0]), version(idle[0]), numbers, of
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

    def said(self, line: str, outcome: Outcome) -> str:
        numbers, of = self._sizes.get(line, (0, 0))
        return self.partly.format(numbers=numbers, of=of) if of else self.text

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
