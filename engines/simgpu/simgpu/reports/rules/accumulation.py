"""Rules on means of losses, and on gradients of several batches."""

from collections import Counter
from collections.abc import Iterable

import torch

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.ground import places
from simgpu.ground.nodes import graph_of
from simgpu.reports import events
from simgpu.reports.calls import Then
from simgpu.reports.rule import FEW_STEPS, Outcome, Rule

LOSSES = ("NllLoss", "MseLoss", "BinaryCrossEntropy", "SoftMarginLoss", "SmoothL1Loss", "HuberLoss", "MeanBackward")


class AccumulatedSum(Rule, about="result", often="each step"):
    """Gradients of several batches add up before a step, and nothing divides them by the number of batches."""

    text = (
        "The gradients of several batches, each of a mean, add up before each step, and nothing divides the sum, so "
        "that it grows with the number of batches. Divide the loss by it: `(loss / n).backward()`."
    )
    cure = "`(loss / n).backward()`"

    def begin(self) -> None:
        self._batches = self._means = 0  # batches of loaders, and backward passes of means, since the last step
        self._lines: set[str] = set()
        self._left = Then.of(None)  # a gradient after the last pass, or after a clipping that matters

    def on_loaded(self, event: events.Loaded) -> None:
        self._batches += 1

    def on_backward(self, event: events.Backward) -> None:
        self._means += len(event.roots) == 1 and is_mean(event.roots[0])
        self._lines.add(places.place())

    def on_backward_end(self, event: events.Event) -> None:
        self._left = Then.of(next((one.grad for one in self.program.trained if one.grad is not None), None))

    def on_clip(self, event: events.Clip) -> None:
        self._left = Then.of(self._left.now())

    def on_clipped(self, event: events.Clipped) -> None:
        """Go on where it matters: a norm above the limit even when divided is brought to the same."""
        known = self._left.tensor() is not None and not state.world.only_shapes
        if known and float(values_of(event.norm)) < event.limit * self.program.backwards:
            self.on_backward_end(event)

    def on_update(self, event: events.Update) -> None:
        passes, others = self.program.backwards, event.closure or len(self._lines) > 1
        of_batches = passes == self._batches or "%" in places.condition()  # and not of several crops of one batch
        if passes == self._means > 1 and of_batches and self._left.now() is not None and not others:
            self.note(*self._lines)

    def on_updated(self, event: events.Updated) -> None:
        self.begin()


def is_mean(loss: torch.Tensor) -> bool:
    """Return whether the last operation of a loss has taken a mean over all of its values."""
    node = graph_of(loss)
    if node is None or loss.dim() or not node.name().startswith(LOSSES):
        return False
    return getattr(node, "_saved_reduction", 1) == 1


class AccumulationBeginsTooEarly(Rule, about="result"):
    """Gradients of several batches add up before a step, but the first step comes after one batch."""

    text = (
        "The first step comes after one backward pass, each later one after several: a counter that begins at 0 is "
        "divided too early. Write `(i + 1) % n == 0`."
    )
    cure = "`(i + 1) % n == 0`"

    def begin(self) -> None:
        self._lines: set[str] = set()  # of the backward passes since the last step
        self._passes: list[int] = []  # before each step
        self._line = ""  # of the step, or the condition above it
        self._is_one = True  # whether one line has all the backward passes

    def on_backward(self, event: events.Backward) -> None:
        self._lines.add(places.place())

    def on_update(self, event: events.Update) -> None:
        self._line = places.condition() or places.place()
        self._passes.append(self.program.backwards)
        self._is_one &= len(self._lines) == 1 and not event.closure and len(self.program.updates) == 1

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        first, *later = self._passes or [0]
        usual, times = Counter(later).most_common(1)[0] if later else (0, 0)
        if self._is_one and first == 1 < usual and times >= max(FEW_STEPS - 1, len(later) / 2):
            yield self._line


class MeanDividedAgain(Rule, about="result", often="each step"):
    """A loss that is a mean over the samples is divided by their number once more."""

    text = (
        "This loss is a mean over the samples already, and is divided by their number once more, so that its gradients "
        "are that many times smaller. Leave the division out, or write `reduction='sum'`."
    )
    cure = "leave the division out, or `reduction='sum'`"

    def begin(self) -> None:
        self._line = ""

    def on_divided(self, event: events.Divided) -> None:
        if event.divisor == self.program.samples > 1 and is_mean(event.tensor):
            self._line = places.place()

    def on_update(self, event: events.Update) -> None:
        """Note a division in a step of one backward pass: several are divided by how many they are."""
        if self._line and self.program.backwards == 1:
            self.note(self._line)
        self._line = ""
