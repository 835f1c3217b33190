"""Rules on optimizers, and on what changes their rates."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau, SequentialLR
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.clock.lines import Line
from simgpu.ground import places
from simgpu.ground.storages import memory_of
from simgpu.reports import events
from simgpu.reports.calls import Then, version
from simgpu.reports.program import alive, is_set
from simgpu.reports.rule import LOOKED_AT, SELDOM, Outcome, Rule

_MANY_STEPS = 50  # after which a scheduler that counts epochs has had one


@dataclass
class _Built:
    """The optimizer that a line has built last."""

    count: int  # of its parameters
    sample: Then  # the first of them, after its last step
    remembers: bool = False  # whether it keeps something of earlier gradients, as momentum does
    again: int = 0  # how often the line has built one for the same parameters, and let go of what it remembered

    def has(self, sample: torch.Tensor, count: int) -> bool:
        """Return whether it has made steps with these parameters, and nothing has changed them since."""
        return self.remembers and self.count == count and self.sample.is_still(sample)


class OptimizerBuiltAnew(Rule, about="result"):
    """Momentum and the like are lost each time."""

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
        before, built = self._built.get(line), _Built(len(parameters), Then.of(parameters[0]))
        if before is not None and before.has(parameters[0], len(parameters)):
            built.again = before.again + 1
            if built.again > 1:
                self.note(line)
        self._built[line] = self._by_optimizer[event.optimizer] = built

    def on_updated(self, event: events.Updated) -> None:
        built = self._by_optimizer.get(event.optimizer)
        sample = None if built is None else built.sample.tensor()
        if built is not None and sample is not None:
            built.sample = Then.of(sample)
            kept = event.optimizer.state.get(sample, {}).values()
            built.remembers = any(isinstance(one, torch.Tensor) and one.shape == sample.shape for one in kept)


@dataclass
class _Turns:
    """The steps of an optimizer, and how often gradients were cleared that had come for it.

    If its parameters change in between, something else makes its steps: one that it wraps, or the program by hand.
    """

    steps: int = 0
    cleared: int = 0
    versions: list[tuple[int, int]] | None = None


class OptimizerNeverSteps(Rule, about="result", explains=("not-detached",)):
    """Backward passes make gradients for an optimizer that never makes a step."""

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
            versions = [(version(one), memory_of(one)) for one in event.parameters]
            turns = self._turns[event.owner]
            turns.cleared += any(one.grad is not None for one in event.parameters)
            turns.steps += turns.versions not in (None, versions)
            turns.versions = versions

    def on_update(self, event: events.Update) -> None:  # a step that has begun may end the program
        if event.optimizer in self._turns:
            self._turns[event.optimizer].steps += 1

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        for line, turns in self._lines.items():
            if not turns.steps and turns.cleared > 1 and max(self.program.step, turns.cleared) >= SELDOM:
                yield line


class OptimizerOfOtherParameters(
    Rule, about="result", often="twice", explains=("gradients-not-used", "not-detached", "forward-not-used")
):
    """An optimizer's parameters get no gradient: they are cut off, or those of another model than is trained."""

    text = (
        "Parameters of this optimizer get no gradient: a `detach()` keeps the loss from them, or the model that is "
        "trained, or a part of it, is not the one that it was made for. Then make the optimizer last, from that model."
    )
    off = "This cuts a result off from the loss: the optimizer at {step} gets no gradients. Leave out the `detach()`."
    cure = "no `detach()` before the loss; make the optimizer last"

    def begin(self) -> None:
        self._cuts = WeakIdKeyDictionary()  # by a parameter of a model: the line that has cut off its last result

    def on_judged(self, event: events.Judged) -> None:
        sample = event.call.given[-1].tensor()
        if sample is not None and event.call.recorded:
            self._cuts[sample] = event.call.cut

    def on_update(self, event: events.Update) -> None:
        program = self.program
        if program.clear_line and not any(is_set(one.grad) for one in event.parameters):
            return  # they were cleared
        if program.backward_line and all(one.grad is None for one in event.parameters):
            line = next((self._cuts[one] for one in event.parameters if one in self._cuts), "")
            self.note(line, self.off.format(step=Line.of(places.place()).where) if line else "")
        elif program.step < LOOKED_AT and any(one.requires_grad and one.grad is None for one in event.parameters):
            used = (call.model for call in program.passes if call.used)
            parameters = (one for model in used for one in alive(program.parts(model).parameters))
            if any(one.grad is not None and one not in program.trained for one in parameters):
                self.note(self.program.built.get(event.optimizer, ""))


@dataclass
class _Scheduled:
    """How often a scheduler was asked before its optimizer's first step, and where the last time."""

    scheduler: "weakref.ref[Any]"
    calls: int = 0
    line: str = ""


class SchedulerBeforeOptimizer(Rule, about="result"):
    """A scheduler changes the learning rate before the optimizer's first step."""

    text = (
        "The scheduler makes its step before the optimizer has made one, so its plan is a step ahead, and the first "
        "value of it is skipped. Call `optimizer.step()` first."
    )
    cure = "`optimizer.step()` first"

    def begin(self) -> None:
        self._turns: weakref.WeakKeyDictionary[Optimizer, _Scheduled] = weakref.WeakKeyDictionary()
        self._scaled = False  # a scaler may leave the first steps out

    def on_scaler_call(self, event: events.ScalerCall) -> None:
        self._scaled |= event.method == "step"

    def on_scheduled(self, event: events.Scheduled) -> None:
        optimizer, built = event.scheduler.optimizer, event.method == "__init__"
        if isinstance(event.scheduler, ReduceLROnPlateau):  # it has no plan
            return
        if built:  # which asks it for the first learning rate
            self._turns[optimizer] = _Scheduled(weakref.ref(event.scheduler))
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


class SchedulerNeverSteps(Rule, about="result"):
    """A scheduler is built and its `step()` never called, in a whole run of several epochs, or of fifty steps."""

    text = (
        "The `step()` of this scheduler was never called, so the learning rate has stayed as it was in the whole run. "
        "Call it after an epoch or after each `optimizer.step()`, whichever its numbers count."
    )
    cure = "call its `step()`"

    def begin(self) -> None:
        self._idle = set[str]()

    def on_scheduled(self, event: events.Scheduled) -> None:
        if event.method == "__init__":
            if type(event.scheduler).__module__.startswith("torch."):  # others may have a `step` that nobody sees
                self._idle.add(self.program.built[event.scheduler])
            return
        for one in (event.scheduler, *getattr(event.scheduler, "_schedulers", ())):  # of which each has its time
            self._idle.discard(self.program.built.get(one, ""))

    def on_run_end(self, event: events.RunEnd) -> None:
        if event.whole and (self.program.begun > 1 or self.program.step >= _MANY_STEPS):
            for line in self._idle:
                self.note(line)


class StepTakenTwice(Rule, about="result", often="twice"):
    """An optimizer makes a second step with the gradients of its last one, which no backward pass has made anew."""

    text = (
        "No backward pass has run since this optimizer's last step, and its gradients are the same, so this moves the "
        "weights once more by what that step has used. Call `step()` once for each `backward()`."
    )
    cure = "one `step()` for each `backward()`"

    def begin(self) -> None:
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()  # since a backward pass

    def on_backward(self, event: events.Event) -> None:
        self._steps.clear()

    on_grad = on_backward

    def on_update(self, event: events.Update) -> None:
        times = self._steps[event.optimizer] = self._steps.get(event.optimizer, 0) + 1
        if times == 2 and self.program.graphs_used and not event.closure and any(self.program.used(event.parameters)):
            self.note()

    def is_habit(self, steps: int) -> bool:
        return super().is_habit(steps) and 4 * steps >= self.program.step  # else somebody measures how long steps take


class ResultDropped(Rule, about="result", often="twice"):
    """The result of `clamp()` and the like, of a weight or its gradient, is dropped, and the weight stays as it is."""

    text = (
        "This computes something of a weight or its gradient and drops the result, so that both stay as they were. "
        "Write the function that changes it in place, with `_` at the end of its name, under `torch.no_grad()`."
    )
    cure = "the function in place: `clamp_()`"

    def on_dropped(self, event: events.Dropped) -> None:
        known = (tensor for weight in self.program.trained for tensor in (weight, weight.grad) if tensor is not None)
        if memory_of(event.tensor) in map(memory_of, known):
            self.note()
