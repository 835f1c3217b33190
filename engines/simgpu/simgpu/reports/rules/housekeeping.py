"""Rules on what a program asks PyTorch to tidy up, or to wait for."""

from typing import Any

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule


class CacheEmptiedInEachStep(Rule, about="time", often="each step"):
    """A GPU has to finish all its work, and memory is asked for anew."""

    text = (
        "Emptying the cache makes a GPU finish all its work, and the next step asks the driver for the memory again. "
        "Leave it out: PyTorch empties its cache by itself before memory runs out."
    )
    cure = "leave `empty_cache()` out"

    def on_housekeeping(self, event: events.Housekeeping) -> None:
        if event.name == "empty_cache":
            self.note()


class GarbageCollectedInEachStep(Rule, about="time", often="each step"):
    """Looking for garbage takes long and frees no tensor that a variable holds."""

    text = (
        "Looking for garbage takes the host long, and frees no tensor that a variable still holds. Leave it out, and "
        "drop the variable."
    )
    cure = "leave `gc.collect()` out"

    def on_housekeeping(self, event: events.Housekeeping) -> None:
        if event.name == "collect":
            self.note()


class SeedInEachStep(Rule, about="result", often="each step"):
    """Each step draws the same random numbers."""

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


class SynchronisedInEachStep(Rule, about="time", often="each step"):
    """The host waits until the GPU has done everything."""

    text = "The host waits here until the GPU has done everything. Leave it out; only a measurement of time needs it."
    cure = "leave `synchronize()` out"

    def on_housekeeping(self, event: events.Housekeeping) -> None:
        if event.name == "synchronize":
            self.note()
