"""Of several batches that should add up, all but the last are cleared away."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from torch.utils.weak import TensorWeakRef

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.program import is_set, version
from simgpu.reports.rule import Rule


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
