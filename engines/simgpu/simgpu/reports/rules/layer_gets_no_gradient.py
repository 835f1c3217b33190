"""An optimizer has a layer that never gets a gradient: something cuts its result off from the loss."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.ground import places
from simgpu.ground.nodes import graph_nodes, graph_of, is_leaf
from simgpu.reports import events
from simgpu.reports.program import alive
from simgpu.reports.rule import LOOKED_AT, Outcome, Rule, Suspect

_MOST_NODES = 2000  # of a graph that a `detach()` cuts off
_DETACHED = "`detach()` or `.data` cuts off what they have made. Leave it out"
_LOST = (
    "no backward pass comes through its result. Look for `.item()`, `argmax` or `torch.tensor` between it and the loss"
)
_NO_GRAD = "every call of their layer is without gradients. Call it outside of `torch.no_grad()`"


@dataclass
class _Called:
    """The line that has called a layer, whether no model has called it, and whether any call was recorded."""

    line: str
    whole: bool
    recorded: bool


class LayerGetsNoGradient(Rule, about="result", explains=("forward-not-used", "evaluation-with-gradients")):
    text = (
        "No loss reaches {numbers:,} numbers of this optimizer, so its {steps} steps have not changed them: {why}, or "
        "give the optimizer only what is to learn."
    )
    cure = "leave out the `detach()` or the `no_grad()` between the layer and the loss"

    def begin(self) -> None:
        self._called: weakref.WeakKeyDictionary[nn.Module, _Called] = weakref.WeakKeyDictionary()
        self._cuts = WeakIdKeyDictionary()  # by parameter: the line that cuts off what it has made
        self._without: dict[int, tuple[str, str, int]] = {}  # by parameter: the line, why, and how many numbers

    def on_forward(self, event: events.Forward) -> None:
        module, recorded = event.module, torch.is_grad_enabled()
        known = self._called.get(module)
        if module._parameters and (known is None or (recorded and not known.recorded)):
            self._called[module] = _Called(places.place(), len(self.program.running) == 1, recorded)

    def on_cut(self, event: events.Cut) -> None:
        if self.program.step < LOOKED_AT:
            for node in graph_nodes([graph_of(event.tensor)], most=_MOST_NODES):
                if is_leaf(node):
                    self._cuts.setdefault(node.variable, places.place())

    def on_update(self, event: events.Update) -> None:
        """Look for parameters without a gradient after some steps of an optimizer that trains others."""
        for parameter in self.program.reached:
            self._without.pop(id(parameter), None)
        left = [one for one in alive(self.program.waiting[event.optimizer]) if one.requires_grad]
        if self.program.updates[event.optimizer] != LOOKED_AT or len(left) == len(event.parameters):
            return
        owners = {id(one): known for module, known in self._called.items() for one in module._parameters.values()}
        for one in left:
            known = owners.get(id(one))
            if known is not None and not known.recorded:
                self._without[id(one)] = known.line, _NO_GRAD, one.numel()
            elif known is not None and one in self._cuts:
                self._without[id(one)] = self._cuts[one], _DETACHED, one.numel()
            elif known is not None and known.whole:
                self._without[id(one)] = known.line, _LOST, one.numel()

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        return {line: None for line, _, _ in self._without.values() if line}

    def suspect(self, line: str, outcome: Outcome) -> Suspect | None:
        said, here = super().suspect(line, outcome), [one for one in self._without.values() if one[0] == line]
        numbers, steps = sum(one[2] for one in here), max(self.program.updates.values(), default=self.program.step)
        return said and replace(said, text=self.text.format(numbers=numbers, steps=steps, why=here[0][1]))
