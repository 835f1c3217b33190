"""Each step also repeats all the steps before it."""

import weakref
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from simgpu.reports import events, observer
from simgpu.reports.program import is_set
from simgpu.reports.rule import Rule


@dataclass
class _Gradients:
    """What is known of an optimizer's gradients since its last step, by one of its parameters."""

    came: bool = False
    clear: bool = True  # there were none, or zeros, before a backward pass added to them


class GradientsNeverCleared(Rule, about="result", often="twice"):
    text = (
        "Nothing clears the gradients, so each step also repeats all the steps before it. Write "
        "`optimizer.zero_grad()` before this line."
    )
    by_hand = (
        "Nothing clears the gradients, so each step also repeats all the steps before it. Set `weight.grad = None` of "
        "each weight before this line."
    )
    cure = "`optimizer.zero_grad()` before `backward()`; without an optimizer `weight.grad = None`"

    def begin(self) -> None:
        self._gradients: weakref.WeakKeyDictionary[Optimizer, _Gradients] = weakref.WeakKeyDictionary()

    def on_update(self, event: events.Update) -> None:
        known = self._gradients.get(event.optimizer)
        if known is None:
            known = self._gradients[event.optimizer] = _Gradients()
            sample = next((one for one in event.parameters if one.requires_grad), None)
            if sample is not None:
                _watch(sample, known)
        elif known.came and not known.clear and self.program.backward_line:
            self.note(self.program.backward_line)

    def on_updated(self, event: events.Updated) -> None:
        known = self._gradients[event.optimizer]
        known.came = known.clear = False

    def on_hand_step(self, event: events.HandStep) -> None:
        if event.keeps:
            self.note()


def _watch(parameter: torch.Tensor, known: _Gradients) -> None:
    """See what a parameter's gradient was whenever another one is about to be added."""
    reference = weakref.ref(parameter)

    def arrives(gradient: torch.Tensor) -> None:
        sample = reference()
        known.came = True
        known.clear = known.clear or sample is None or not is_set(sample.grad)

    observer.on_gradient(parameter, arrives)
