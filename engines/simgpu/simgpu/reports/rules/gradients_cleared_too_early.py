"""Gradients are cleared between `backward()` and `step()`, so the step changes nothing."""

from simgpu.reports import events
from simgpu.reports.program import is_set
from simgpu.reports.rule import Rule


class GradientsClearedTooEarly(Rule, about="result", often="twice"):
    text = (
        "This clears the gradients between `backward()` and `step()`, so the step changes nothing. Clear them before "
        "`backward()`."
    )
    cure = "clear them before `backward()`"

    def on_update(self, event: events.Update) -> None:
        if self.program.clear_line and not any(is_set(one.grad) for one in event.parameters):
            self.note(self.program.clear_line)
