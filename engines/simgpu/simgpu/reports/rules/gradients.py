"""Rules on gradients that add up, or are lost."""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from simgpu.ground import places
from simgpu.reports import events, observer
from simgpu.reports.calls import Pass
from simgpu.reports.program import Program, alive, is_set, version
from simgpu.reports.rule import Outcome, Rule


@dataclass
class _Gradients:
    """What is known of an optimizer's gradients since its last step, by one of its parameters."""

    line: str = ""  # of the last backward pass that made some
    clear: bool = True  # there were none, or zeros, before a backward pass added to them


class GradientsNeverCleared(Rule, about="result", often="twice"):
    """Each step also repeats all the steps before it."""

    repeats = "Nothing clears the gradients, so each step also repeats all the steps before it."
    text = f"{repeats} Write `optimizer.zero_grad()` before this line."
    by_hand = f"{repeats} Set `weight.grad = None` of each weight before this line."
    cure = "`optimizer.zero_grad()` before `backward()`; without an optimizer `weight.grad = None`"

    def begin(self) -> None:
        self._gradients: weakref.WeakKeyDictionary[Optimizer, _Gradients] = weakref.WeakKeyDictionary()

    def on_update(self, event: events.Update) -> None:
        known = self._gradients.get(event.optimizer)
        if known is None:
            known = self._gradients[event.optimizer] = _Gradients()
            sample = next((one for one in event.parameters if one.requires_grad), None)
            if sample is not None:
                _watch(sample, known, self.program)
        elif known.line and not known.clear:
            self.note(known.line)

    def on_updated(self, event: events.Updated) -> None:
        known = self._gradients[event.optimizer]
        known.line, known.clear = "", False

    def on_hand_step(self, event: events.HandStep) -> None:
        if event.keeps:
            self.note()


def _watch(parameter: torch.Tensor, known: _Gradients, program: Program) -> None:
    """See what a parameter's gradient was whenever another one is about to be added."""
    reference = weakref.ref(parameter)

    def arrives(gradient: torch.Tensor) -> None:
        sample = reference()
        known.line = program.backward_line
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

    text = "This clears gradients that no step has used: of several batches only the last counts. Clear after `step()`."
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
    step: int

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
                self.program.notes[self.code, one.line].add(one.step)
        self._left = [one for one in self._left if id(one.weight()) not in known]

    def on_update(self, event: events.Update) -> None:
        self._left = [one for one in self._left if not any(one.weight() is weight for weight in event.parameters)]

    def on_all_judged(self, event: events.AllJudged) -> None:
        self._left = [one for one in [*self._left, *self._leftovers()] if one.is_left]

    def _leftovers(self) -> Iterator[_Leftover]:
        """Yield what backward passes have made for the sake of models, by the calls of these since the last step."""
        calls = (call for call in self.program.passes if call.filled and not call.fed and not call.stepped)
        return (_Leftover(call.line, *call.given[-1], self.program.step) for call in calls)


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
    """Gradients are computed of a model, or a part of one, that no optimizer trains."""

    _instead = "Call `requires_grad_(False)` of them once; if they are to learn, give them to the optimizer."
    text = f"The backward pass computes gradients of this model's weights, and no optimizer uses them. {_instead}"
    partly = "Gradients are computed of {numbers:,} of this model's {of:,} numbers, which no optimizer has. " + _instead
    cure = "`model.requires_grad_(False)`"

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
        named = set[int]()  # models: what helps at one of their lines helps at all
        for call in self._untrained:
            if id(call.model) not in named and self._gets_gradients(call):
                named.add(id(call.model))
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
        return next((one for one in alive(self.program.parts(call.model).parameters) if one.grad is not None), None)

    def _gets_gradients(self, call: Pass) -> bool:
        """Return whether a backward pass has left gradients in a model whose weights are as they were."""
        parameter = self._sample(call)
        weight, before = call.given[-1][0](), call.given[-1][1]
        unchanged = weight is not None and version(weight) == before
        return parameter is not None and (unchanged or (parameter in self._left and self._left[parameter].stays))
