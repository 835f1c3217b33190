"""Rules on gradients that add up, or are lost."""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from simgpu.ground import places
from simgpu.reports import events, observer
from simgpu.reports.program import is_set, version
from simgpu.reports.rule import Rule


@dataclass
class _Gradients:
    """What is known of an optimizer's gradients since its last step, by one of its parameters."""

    came: bool = False
    clear: bool = True  # there were none, or zeros, before a backward pass added to them


class GradientsNeverCleared(Rule, about="result", often="twice"):
    """Each step also repeats all the steps before it."""

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


@dataclass
class _ThrownAway:
    """Gradients that were cleared before an optimizer's step had used them, by one of their parameters."""

    backward: str  # the line that made them, and the one that cleared them
    clearing: str
    sample: "weakref.ref[nn.Parameter]"
    version: int
    others: TensorWeakRef | None = None  # what a later backward pass has made in their place

    @classmethod
    def of(cls, backward: str, parameters: Iterable[nn.Parameter]) -> "_ThrownAway | None":
        sample = next((one for one in parameters if is_set(one.grad)), None)
        return None if sample is None else cls(backward, places.place(), weakref.ref(sample), version(sample))

    def is_made_again(self, backward: str) -> bool:
        """Return whether a backward pass in the same line makes new ones, of unchanged weights."""
        sample = self.sample()
        return self.backward == backward and sample is not None and version(sample) == self.version

    def keep(self) -> None:
        """Keep in mind what a backward pass has made in their place."""
        sample = self.sample()
        self.others = None if sample is None or sample.grad is None else TensorWeakRef(sample.grad)

    @property
    def step_uses_others(self) -> bool:
        """Whether an optimizer uses only what was made in their place, rather than what the program made of both."""
        sample = self.sample()
        return sample is not None and self.others is not None and sample.grad is self.others()


class GradientsThrownAway(Rule, about="result", often="each step"):
    """Of several batches that should add up, all but the last are cleared away."""

    text = (
        "This clears gradients that no step has used, so of several batches only the last one counts. Clear them once, "
        "after `step()`."
    )
    cure = "clear once, after `step()`"

    def begin(self) -> None:
        self._thrown_away: _ThrownAway | None = None
        self._clearing = ""  # the line that threw away gradients of a backward pass that came again

    def on_clear(self, event: events.Clear) -> None:
        if self.program.backward_line:
            self._thrown_away = _ThrownAway.of(self.program.backward_line, event.parameters)

    def on_backward(self, event: events.Backward) -> None:
        if self._thrown_away is not None and self._thrown_away.is_made_again(self.program.backward_line):
            self._clearing = self._thrown_away.clearing

    def on_backward_end(self, event: events.BackwardEnd) -> None:
        if self._clearing and self._thrown_away is not None:
            self._thrown_away.keep()

    def on_update(self, event: events.Update) -> None:
        thrown_away = self._thrown_away
        if self._clearing and not event.closure and thrown_away is not None and thrown_away.step_uses_others:
            self.note(self._clearing)

    def on_updated(self, event: events.Updated) -> None:
        self._thrown_away, self._clearing = None, ""


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
    """Gradients are made that are cleared before a step uses them, as those of a generator in its critic's step."""

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

    def on_update(self, event: events.Update) -> None:
        self._left = [one for one in self._left if not any(one.weight() is weight for weight in event.parameters)]

    def on_all_judged(self, event: events.AllJudged) -> None:
        self._left = [one for one in [*self._left, *self._leftovers()] if one.is_left]

    def _leftovers(self) -> Iterator[_Leftover]:
        """Yield what backward passes have made for the sake of models, by the calls of these since the last step."""
        calls = (call for call in self.program.passes if call.filled and not call.fed and not call.stepped)
        return (_Leftover(call.line, *call.given[-1]) for call in calls)
