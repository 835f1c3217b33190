"""Looking for garbage takes long and frees no tensor that a variable holds."""

from simgpu.reports import events
from simgpu.reports.rule import Rule


class GarbageCollectedInEachStep(Rule, about="time", often="each step"):
    text = (
        "Looking for garbage takes the host long, and frees no tensor that a variable still holds. Leave it out, and "
        "drop the variable."
    )
    cure = "leave `gc.collect()` out"

    def on_housekeeping(self, event: events.Housekeeping) -> None:
        if event.name == "collect":
            self.note()
