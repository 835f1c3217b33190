"""A GPU has to finish all its work, and memory is asked for anew."""

from simgpu.reports import events
from simgpu.reports.rule import Rule


class CacheEmptiedInEachStep(Rule, about="time", often="each step"):
    text = (
        "Emptying the cache makes a GPU finish all its work, and the next step asks the driver for the memory again. "
        "Leave it out: PyTorch empties its cache by itself before memory runs out."
    )
    cure = "leave `empty_cache()` out"

    def on_housekeeping(self, event: events.Housekeeping) -> None:
        if event.name == "empty_cache":
            self.note()
