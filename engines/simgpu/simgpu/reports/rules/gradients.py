"""Rules on gradients that add up, or are lost."""

import functools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.ground import places
from simgpu.reports import events, observer
from simgpu.reports.calls import Pass, Then
from simgpu.reports.program import alive, is_set
from simgpu.reports.rule import Rule


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
                observer.on_gradient(sample, functools.partial(self._arrives, known, weakref.ref(sample)))
        elif known.line and not known.clear:
            self.note(known.line)

    def on_updated(self, event: events.Updated) -> None:
        known = self._gradients[event.optimizer]
        known.line, known.clear = "", False

    def on_hand_step(self, event: events.HandStep) -> None:
        if event.keeps:
            self.note()

    def _arrives(self, known: _Gradients, reference: "weakref.ref[torch.Tensor]", gradient: torch.Tensor) -> None:
        """See what a parameter's gradient was when another one is about to be added."""
        sample = reference()
        known.line = self.program.backward_line
        known.clear = known.clear or sample is None or not is_set(sample.grad)


class GradientsThrownAway(Rule, about="result", often="each step"):
    """Of several batches that should add up, all but the last are cleared away."""

    text = "This clears gradients that no step has used: of several batches only the last counts. Clear after `step()`."
    cure = "clear once, after `step()`"

    def begin(self) -> None:
        self._backward = self._clearing = ""  # the lines that made gradients which nothing has used, and cleared them
        self._sample = self._others = Then.of(None)  # one of their weights, and what was made in its gradient's place
        self._again = False  # whether a backward pass in the same line makes new ones, of unchanged weights

    def on_clear(self, event: events.Clear) -> None:
        if self.program.backward_line:
            self._backward, self._clearing = self.program.backward_line, places.place()
            self._sample = Then.of(next((one for one in event.parameters if is_set(one.grad)), None))

    def on_backward(self, event: events.Backward) -> None:
        self._again |= self._sample.now() is not None and self._backward == self.program.backward_line

    def on_backward_end(self, event: events.BackwardEnd) -> None:
        sample = self._sample.tensor() if self._again else None
        self._others = Then.of(None if sample is None else sample.grad)

    def on_update(self, event: events.Update) -> None:
        """Note gradients in whose place the optimizer uses others alone, not what the program has made of both."""
        sample = self._sample.tensor()
        made = None if sample is None else sample.grad
        if self._again and not event.closure and made is not None and made is self._others.tensor():
            self.note(self._clearing)

    def on_updated(self, event: events.Updated) -> None:
        self.begin()


@dataclass(frozen=True)
class _Leftover:
    """A call of a model that a backward pass went through: its line, and a parameter."""

    line: str
    weight: Then
    step: int

    @property
    def is_left(self) -> bool:
        """Whether no optimizer has used the gradients."""
        weight = self.weight.now()
        return weight is not None and weight.grad is not None


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
            if id(one.weight.tensor()) in known and one.is_left:
                self.program.notes[self.code, one.line].add(one.step)
        self._left = [one for one in self._left if id(one.weight.tensor()) not in known]

    def on_update(self, event: events.Update) -> None:
        self._left = [
            one for one in self._left if not any(one.weight.tensor() is weight for weight in event.parameters)
        ]

    def on_all_judged(self, event: events.AllJudged) -> None:
        self._left = [one for one in [*self._left, *self._leftovers()] if one.is_left]

    def _leftovers(self) -> Iterator[_Leftover]:
        """Yield what backward passes have made for the sake of models, by the calls of these since the last step."""
        calls = (call for call in self.program.passes if call.filled and not call.fed and not call.stepped)
        return (_Leftover(call.line, call.given[-1], self.program.step) for call in calls)


_WORTH = 0.1  # of a model's numbers


@dataclass(frozen=True)
class _Left:
    """The gradient of a parameter after a backward pass; `stays`: that of the step before was still there then."""

    gradient: Then
    step: int
    stays: bool = False


class GradientsNotUsed(Rule, about="time", often="each step"):
    """Gradients are computed of a model, or a part of one, that no optimizer trains."""

    _instead = "Call `requires_grad_(False)` of them once; if they are to learn, give them to the optimizer."
    text = f"The backward pass computes gradients of this model's weights, and no optimizer uses them. {_instead}"
    partly = "Gradients are computed of {numbers:,} of this model's {of:,} numbers, which no optimizer has. " + _instead
    cure = "`model.requires_grad_(False)`"

    def begin(self) -> None:
        self._untrained: list[Pass] = []  # of models that no optimizer trains
        self._parts: dict[str, tuple[Then, int, int]] = {}  # by line, of models trained in part: a parameter, and sizes
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
        for line, (then, numbers, of) in self._parts.items():
            sample = then.now()
            if sample is not None and sample not in self.program.trained:
                self.note(line, self.partly.format(numbers=numbers, of=of))
        self._untrained, self._parts = [], {}

    def on_judged(self, event: events.Judged) -> None:
        if event.call.used and event.trained:
            all_of = list(alive(self.program.parts(event.call.model).parameters))
            idle = [one for one in all_of if one.grad is not None and one not in self.program.trained]
            numbers, of = (sum(one.numel() for one in some) for some in (idle, all_of))
            if idle and numbers >= _WORTH * of:
                self._parts[event.call.line] = Then.of(idle[0]), numbers, of
        if event.call.used and not event.trained:
            self._untrained.append(event.call)
            models = list(dict.fromkeys(one.model for one in self.program.passes if one.line == event.call.line))
            which = f"model {models.index(event.call.model) + 1} of the {len(models)} that this line calls"
            whose = f"the weights of {which}, a `{type(event.call.model).__name__}`"
            self.texts[event.call.line] = self.text.replace("this model's weights", whose) if len(models) > 1 else ""
            parameter = self._sample(event.call)
            if parameter is not None and parameter not in self._left:
                self._left[parameter] = _Left(Then.of(parameter.grad), self.program.step)

    def on_backward(self, event: events.Backward) -> None:
        for parameter, left in list(self._left.items()):
            if left.step != self.program.step:
                self._left[parameter] = replace(left, stays=left.gradient.is_still(parameter.grad))

    def on_backward_end(self, event: events.BackwardEnd) -> None:
        for parameter, left in list(self._left.items()):
            self._left[parameter] = _Left(Then.of(parameter.grad), self.program.step, left.stays)

    def _sample(self, call: Pass) -> torch.Tensor | None:
        """Return the first parameter of a model that has a gradient."""
        return next((one for one in alive(self.program.parts(call.model).parameters) if one.grad is not None), None)

    def _gets_gradients(self, call: Pass) -> bool:
        """Return whether a backward pass has left gradients in a model whose weights are as they were."""
        parameter = self._sample(call)
        unchanged = call.given[-1].now() is not None
        return parameter is not None and (unchanged or (parameter in self._left and self._left[parameter].stays))
