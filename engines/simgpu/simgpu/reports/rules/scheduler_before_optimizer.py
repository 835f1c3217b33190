"""A scheduler changes the learning rate before the optimizer's first step."""

import weakref
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import SequentialLR

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule


@dataclass
class _Turns:
    """How often a scheduler was asked before its optimizer's first step, and where the last time."""

    scheduler: "weakref.ref[Any]"
    calls: int = 0
    line: str = ""


class SchedulerBeforeOptimizer(Rule, about="result"):
    text = (
        "The scheduler makes its step before the optimizer has made one, so its plan is a step ahead, and the first "
        "value of it is skipped. Call `optimizer.step()` first."
    )
    cure = "`optimizer.step()` first"

    def begin(self) -> None:
        self._turns: weakref.WeakKeyDictionary[Optimizer, _Turns] = weakref.WeakKeyDictionary()
        self._scaled = False  # a scaler may leave the first steps out

    def on_scaler_call(self, event: events.ScalerCall) -> None:
        self._scaled |= event.method == "step"

    def on_scheduled(self, event: events.Scheduled) -> None:
        optimizer, built = event.scheduler.optimizer, event.method == "__init__"
        if built:  # which asks it for the first learning rate
            self._turns[optimizer] = _Turns(weakref.ref(event.scheduler))
        elif optimizer in self._turns:
            turns = self._turns[optimizer]
            if isinstance(event.scheduler, SequentialLR):  # which asks those that it is made of
                turns.scheduler = weakref.ref(event.scheduler)
            if turns.scheduler() is event.scheduler:
                turns.calls, turns.line = turns.calls + 1, places.place()

    def on_update(self, event: events.Update) -> None:
        """Note a scheduler that was asked once: several times before the first step, a run was resumed."""
        turns = self._turns.pop(event.optimizer, None)
        if turns is not None and turns.calls == 1 and not self._scaled and self.program.updates[event.optimizer] == 1:
            self.note(turns.line)
