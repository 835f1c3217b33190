"""A loss that is a mean over the samples is divided by their number once more."""

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule
from simgpu.reports.rules.accumulated_sum import is_mean


class MeanDividedAgain(Rule, about="result", often="each step"):
    text = (
        "This loss is a mean over the samples already, and is divided by their number once more, so that its gradients "
        "are that many times smaller. Leave the division out, or write `reduction='sum'`."
    )
    cure = "leave the division out, or `reduction='sum'`"

    def begin(self) -> None:
        self._samples = 0  # that the last model got
        self._line = ""

    def on_called(self, event: events.Called) -> None:
        self._samples = event.call.samples

    def on_divided(self, event: events.Divided) -> None:
        if event.divisor == self._samples > 1 and is_mean(event.tensor):
            self._line = places.place()

    def on_update(self, event: events.Update) -> None:
        """Note a division in a step of one backward pass: several are divided by how many they are."""
        if self._line and self.program.backwards == 1:
            self.note(self._line)
        self._line = ""
