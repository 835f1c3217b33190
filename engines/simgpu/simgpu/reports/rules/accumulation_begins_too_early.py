"""Gradients of several batches add up before a step, but the first step comes after one batch."""

from collections import Counter
from collections.abc import Iterable

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import FEW_STEPS, Outcome, Rule


class AccumulationBeginsTooEarly(Rule, about="result"):
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
