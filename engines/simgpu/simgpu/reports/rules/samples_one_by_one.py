"""The model is called for each sample alone, and launches all of its kernels each time."""

from collections import Counter

from simgpu.reports import events
from simgpu.reports.calls import LOOPED
from simgpu.reports.rule import Rule


class SamplesOneByOne(Rule, about="time", often="each step"):
    text = (
        "This calls the model for each sample alone, and each call launches all of its kernels. Call it once, with a "
        "batch of all of them."
    )
    cure = "call it once, with a batch"

    def on_all_judged(self, event: events.AllJudged) -> None:
        """Note calls with one sample each that could be a batch: many, of the same shape."""
        alike = Counter((call.model, call.alone) for call in event.used)
        for call in event.used:
            if call.alone is not None and alike[call.model, call.alone] > LOOPED * self.program.backwards:
                self.note(call.line)
