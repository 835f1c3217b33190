"""Each step draws the same random numbers."""

from typing import Any

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule


class SeedInEachStep(Rule, about="result", often="each step"):
    text = "The same seed in each step draws the same random numbers again. Set it once, before the loop."
    cure = "set the seed once, before the loop"

    def begin(self) -> None:
        self._seeds: dict[str, tuple[Any, ...]] = {}  # the last one, by line

    def on_housekeeping(self, event: events.Housekeeping) -> None:
        if event.name == "manual_seed":
            line = places.place()
            if self._seeds.get(line) == event.args:
                self.note(line)
            self._seeds[line] = event.args
