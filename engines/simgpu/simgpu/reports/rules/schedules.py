"""Rules on schedulers that are asked too often, or too seldom."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, MultiStepLR, OneCycleLR, StepLR

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import FEW_STEPS, Outcome, Rule

_NOTHING = 1.01e-5  # of the first rate: five times a tenth
_FEW_STEPS = 8  # of a plan: with fewer, a coincidence is likely


class RateDecaysToNothing(Rule, about="result"):
    """A scheduler has divided the learning rate so often that the steps after it change next to nothing."""

    text = (
        "The learning rate has fallen to 0.001 % of the first one or less, and many steps follow, which change next "
        "to nothing. Call this scheduler once an epoch and not after each batch, or let the rate fall more slowly."
    )
    cure = "call the scheduler once an epoch, or let the rate fall more slowly"

    def begin(self) -> None:
        self._lines: weakref.WeakKeyDictionary[Optimizer, str] = weakref.WeakKeyDictionary()
        self._low: dict[str, int] = {}  # steps with such a rate, by the line of the scheduler

    def on_scheduled(self, event: events.Scheduled) -> None:
        if event.method == "step" and isinstance(event.scheduler, StepLR | MultiStepLR | ExponentialLR):
            self._lines[event.scheduler.optimizer] = places.place()

    def on_update(self, event: events.Update) -> None:
        line, groups = self._lines.get(event.optimizer, ""), event.optimizer.param_groups
        if line and all(0 < one["lr"] <= _NOTHING * one.get("initial_lr", 0) for one in groups):
            self._low[line] = self._low.get(line, 0) + 1
            if self._low[line] >= max(FEW_STEPS, self.program.updates[event.optimizer] / 4):
                self.note(line)


@dataclass
class _Plan:
    """A scheduler for so many steps: how often it was asked, where, and the steps that its optimizer has made since."""

    scheduler: "weakref.ref[Any]"
    steps: int
    calls: int = 0
    made: int = 0
    line: str = ""


class ScheduleOfOtherLength(Rule, about="result"):
    """A scheduler was made for as many steps as the optimizer has made, and was asked far less often, or for epochs."""

    text = (
        "This scheduler was made for as many steps as its optimizer has made, and its own `step()` was called far less "
        "often, so the rate stays near the beginning of its plan. Call it after each `optimizer.step()`."
    )
    for_epochs = (
        "This scheduler was made for as many steps as there are epochs, and is called after each batch, so the rate "
        "goes down and up again several times. Call it once an epoch, or make it for all batches."
    )
    cure = "call it after each `optimizer.step()`, or make it for as many steps as call it"

    def begin(self) -> None:
        self._plans: list[_Plan] = []
        self._by_optimizer: weakref.WeakKeyDictionary[Optimizer, _Plan] = weakref.WeakKeyDictionary()

    def on_scheduled(self, event: events.Scheduled) -> None:
        scheduler = event.scheduler
        plan = self._by_optimizer.get(scheduler.optimizer)
        if event.method == "__init__" and isinstance(scheduler, OneCycleLR | CosineAnnealingLR):
            steps = scheduler.total_steps if isinstance(scheduler, OneCycleLR) else scheduler.T_max
            self._by_optimizer[scheduler.optimizer] = plan = _Plan(weakref.ref(scheduler), steps)
            self._plans.append(plan)
        elif plan is not None and plan.scheduler() is scheduler:
            plan.calls, plan.line = plan.calls + 1, places.place()

    def on_update(self, event: events.Update) -> None:
        if event.optimizer in self._by_optimizer:
            self._by_optimizer[event.optimizer].made += 1

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        for plan in self._plans:
            rarely = plan.steps == plan.made >= _FEW_STEPS and 1 < plan.calls <= plan.steps / 2
            begun = self.program.begun  # with those of a validation in each epoch, or without
            epochs = plan.calls == plan.made >= 2 * plan.steps > 2 and begun in (plan.steps, 2 * plan.steps)
            if rarely or epochs:
                self.texts[plan.line] = self.text if rarely else self.for_epochs
                yield plan.line
