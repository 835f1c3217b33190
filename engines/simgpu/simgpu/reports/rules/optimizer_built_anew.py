"""Momentum and the like are lost each time."""

import weakref
from dataclasses import dataclass

import torch
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule


@dataclass
class _Built:
    """The optimizer that a line has built last, and how its first parameter was after its last step."""

    sample: TensorWeakRef
    count: int  # of its parameters
    version: int = -1
    remembers: bool = False  # whether it keeps something of earlier gradients, as momentum does
    again: int = 0  # how often the line has built one for the same parameters, and let go of what it remembered

    def has(self, sample: torch.Tensor, count: int) -> bool:
        """Return whether it has made steps with these parameters, and nothing has changed them since."""
        return self.remembers and self.sample() is sample and self.count == count and self.version == sample._version


class OptimizerBuiltAnew(Rule, about="result"):
    text = (
        "This builds an optimizer anew for the same model, and what it knew of earlier gradients, such as momentum, is "
        "lost. Build it once, before the loop; a scheduler changes its learning rate."
    )
    cure = "build it once; a scheduler changes its learning rate"

    def begin(self) -> None:
        self._built: dict[str, _Built] = {}  # by line
        self._by_optimizer: weakref.WeakKeyDictionary[Optimizer, _Built] = weakref.WeakKeyDictionary()

    def on_optimizer_built(self, event: events.OptimizerBuilt) -> None:
        parameters = [one for group in event.optimizer.param_groups for one in group["params"]]
        line = places.place()
        before, built = self._built.get(line), _Built(TensorWeakRef(parameters[0]), len(parameters))
        if before is not None and before.has(parameters[0], len(parameters)):
            built.again = before.again + 1
            if built.again > 1:
                self.note(line)
        self._built[line] = self._by_optimizer[event.optimizer] = built

    def on_updated(self, event: events.Updated) -> None:
        built = self._by_optimizer.get(event.optimizer)
        sample = None if built is None else built.sample()
        if built is not None and sample is not None:
            built.version = sample._version
            kept = event.optimizer.state.get(sample, {}).values()
            built.remembers = any(isinstance(one, torch.Tensor) and one.shape == sample.shape for one in kept)
