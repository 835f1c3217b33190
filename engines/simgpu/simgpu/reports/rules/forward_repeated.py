"""The same model computes the same from the same tensors twice in a step."""

from simgpu.reports import events
from simgpu.reports.rule import Rule


class ForwardRepeated(Rule, about="time", often="twice"):
    text = (
        "The model has computed this before in the same step, from the same tensors. Call it once, and use its result "
        "twice."
    )
    cure = "call it once"

    def on_judged(self, event: events.Judged) -> None:
        """Note a call that repeats one before without chance, if backward passes use both."""
        call = event.call
        if call.before is not None and call.used and call.before.used and not call.random:
            self.note(call.line)
