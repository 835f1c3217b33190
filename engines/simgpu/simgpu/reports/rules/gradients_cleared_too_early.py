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


BAD = [
    ("loss.backward()\n", "loss.backward(); optimizer.zero_grad()\n", "optimizer.zero_grad()"),
    ("loss.backward()\n", "loss.backward(); model.zero_grad(set_to_none=False)\n", "model.zero_grad"),
]
GOOD = {"cleared by the model": ("optimizer.zero_grad()", "model.zero_grad()")}
