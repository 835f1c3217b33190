"""Trainings of a program that come one after the other: which optimizer's steps are those of the program."""

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from simgpu.clock.events import Log
from simgpu.ground import places

_IN_A_ROW = 4  # steps, after as many of the optimizer that leads: no generator and critic in turns
MOST_TIMED = 4  # trainings of which steps are recorded


@dataclass(eq=False)
class Training:
    """Steps of one optimizer, or of several of one class and line that were made for the same parameters."""

    name: str = ""
    line: str = ""
    steps: int = 0
    log: Log = field(default_factory=Log)
    sample: Any = lambda: None  # a weak reference to the first of its parameters
    count: int = 0  # of these

    def is_of(self, parameters: list[torch.Tensor]) -> bool:
        """Return whether this training is one of these parameters; nobody has begun the first."""
        known = self.sample()
        return not self.count or (len(parameters) == self.count and any(one is known for one in parameters))


class Trainings:
    """Follows the optimizers; `log` is that of the first training."""

    def __init__(self, log: Log) -> None:
        self.first = self.now = Training(log=log)
        self.all = [self.first]
        self._leader = self._last = lambda: None  # weak references: to the optimizer that ends steps, and made the last
        self._row = self._row_of_leader = 0  # steps of the last one in a row, and of the leader before

    def leads(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether a step of the program ends with this one of an optimizer; `now` is its training then."""
        leader, again = self._leader(), self._last() is optimizer
        self._row, self._last = self._row + 1 if again else 1, weakref.ref(optimizer)
        if leader is not optimizer:
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            begun, goes_on = (type(optimizer).__name__, places.place()), self.now.is_of(parameters)
            mine = (one for one in self.all if one.is_of(parameters) and (one.name, one.line) in (begun, ("", "")))
            training = next(mine, None) or Training()
            often, least = (1, _IN_A_ROW * (training not in self.all)) if goes_on else (_IN_A_ROW, _IN_A_ROW)
            if leader is not None and (self._row < often or self._row_of_leader < least):
                return False
            self.now, self._leader = training, self._last
            self.all = list(dict.fromkeys([*self.all, training]))
            if not training.count:
                (training.name, training.line), training.count = begun, len(parameters)
                training.sample = weakref.ref(parameters[0])
            training.steps += (self._row - 1) * (leader is not None)
        self._row_of_leader = self._row
        self.now.steps += 1
        return True
