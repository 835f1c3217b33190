"""Backward passes make gradients for an optimizer that never makes a step."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

from torch.optim import Optimizer

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.program import version
from simgpu.reports.rule import SELDOM, Outcome, Rule


@dataclass
class _Turns:
    """The steps of an optimizer, how often gradients were cleared that had come for it, and its parameters' versions.

    If these change in between, something else makes its steps, such as an optimizer that it wraps.
    """

    steps: int = 0
    cleared: int = 0
    versions: int | None = None


class OptimizerNeverSteps(Rule, about="result", explains=("not-detached",)):
    text = (
        "Backward passes made gradients for this optimizer, and `zero_grad()` cleared them, but its `step()` was never "
        "called, so its parameters have not changed. Call `step()` after `backward()`."
    )
    cure = "call its `step()`"

    def begin(self) -> None:
        self._lines: dict[str, _Turns] = {}  # of the last optimizer that a line has built
        self._turns: weakref.WeakKeyDictionary[Optimizer, _Turns] = weakref.WeakKeyDictionary()

    def on_optimizer_built(self, event: events.OptimizerBuilt) -> None:
        self._lines[places.place()] = self._turns[event.optimizer] = _Turns()

    def on_clear(self, event: events.Clear) -> None:
        if isinstance(event.owner, Optimizer) and event.owner in self._turns:
            turns, versions = self._turns[event.owner], sum(map(version, event.parameters))
            turns.cleared += any(one.grad is not None for one in event.parameters)
            turns.steps += turns.versions not in (None, versions)
            turns.versions = versions

    def on_updated(self, event: events.Updated) -> None:
        if event.optimizer in self._turns:
            self._turns[event.optimizer].steps += 1

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        for line, turns in self._lines.items():
            if not turns.steps and turns.cleared > 1 and max(self.program.step, turns.cleared) >= SELDOM:
                yield line
