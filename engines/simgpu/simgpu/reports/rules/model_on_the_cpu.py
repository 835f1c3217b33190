"""A model that learns has stayed on the CPU."""

from simgpu.reports import events
from simgpu.reports.program import alive
from simgpu.reports.rule import Rule


class ModelOnTheCpu(Rule, about="time", often="each step", explains=("host-work", "host-waits")):
    text = (
        "This model is on the CPU, and so is all that it computes, forwards and backwards: no time here counts it. "
        "Write `model.to(device)` before the optimizer is made."
    )
    cure = "`model.to(device)`"

    def on_judged(self, event: events.Judged) -> None:
        parameters = list(alive(self.program.parts(event.call.model).parameters))
        if event.call.used and event.trained and all(one.device.type == "cpu" for one in parameters):
            self.note(event.call.line)
