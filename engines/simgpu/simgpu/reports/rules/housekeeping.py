"""Rules on what a program asks PyTorch to tidy up, or to wait for."""

from typing import Any

import torch

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule


class AnomalyModeLeftOn(Rule, about="time", often="each step"):
    """Anomaly mode keeps a traceback of each operator, and reads each gradient."""

    text = (
        "In anomaly mode PyTorch keeps a traceback of each operation, and the host reads every gradient to look for "
        "NaN in it. Turn it on to find a fault, and leave it out afterwards."
    )
    cure = "leave `set_detect_anomaly(True)` out once the fault is found"

    def begin(self) -> None:
        self._line = ""

    def on_housekeeping(self, event: events.Housekeeping) -> None:
        self._line = places.place() if event.name == "anomaly" else self._line

    def on_backward(self, event: events.Backward) -> None:
        if torch.is_anomaly_enabled() and self._line:
            self.note(self._line)


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

    text = "Looking for garbage takes long, and frees no tensor that a variable holds. Leave it out; drop the variable."
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
