"""Gradients are made that are cleared before a step uses them, as those of a generator in the step of its critic."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from simgpu.reports import events
from simgpu.reports.program import version
from simgpu.reports.rule import Rule


@dataclass(frozen=True)
class _Leftover:
    """A call of a model that a backward pass went through: its line, and a parameter with its version then."""

    line: str
    weight: "weakref.ref[torch.Tensor]"
    version: int

    @property
    def is_left(self) -> bool:
        """Whether no optimizer has used the gradients."""
        weight = self.weight()
        return weight is not None and weight.grad is not None and version(weight) == self.version


class NotDetached(Rule, about="time", often="each step"):
    text = (
        "A backward pass goes on through this call, and the gradients that it makes here are cleared before any step "
        "uses them. Where only another model learns from the result, put `.detach()` behind it."
    )
    cure = "`.detach()` behind the result"

    def begin(self) -> None:
        self._left: list[_Leftover] = []  # of earlier steps

    def on_clear(self, event: events.Clear) -> None:
        """Note calls that need not be in the graph: others made a step since, and theirs are cleared without one.

        An optimizer that looks for its step calls models as often as it likes.
        """
        if self.program.backward_line or self.program.closure or self.program.searches:
            return
        known = set(map(id, event.parameters))
        for one in [*self._left, *self._leftovers()]:
            if id(one.weight()) in known and one.is_left:
                self.note(one.line)
        self._left = [one for one in self._left if id(one.weight()) not in known]

    def on_all_judged(self, event: events.AllJudged) -> None:
        self._left = [one for one in [*self._left, *self._leftovers()] if one.is_left]

    def _leftovers(self) -> Iterator[_Leftover]:
        """Yield what backward passes have made for the sake of models, by the calls of these since the last step."""
        calls = (call for call in self.program.passes if call.filled and not call.fed)
        return (_Leftover(call.line, *call.given[-1]) for call in calls)
