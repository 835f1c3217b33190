"""The host waits until the GPU has done everything."""

from simgpu.reports import events
from simgpu.reports.rule import Rule


class SynchronisedInEachStep(Rule, about="time", often="each step"):
    text = "The host waits here until the GPU has done everything. Leave it out; only a measurement of time needs it."
    cure = "leave `synchronize()` out"

    def on_housekeeping(self, event: events.Housekeeping) -> None:
        if event.name == "synchronize":
            self.note()
