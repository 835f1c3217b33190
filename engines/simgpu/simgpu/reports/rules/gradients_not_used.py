"""Gradients are computed of a model that no optimizer trains."""

from simgpu.reports import events
from simgpu.reports.calls import Pass
from simgpu.reports.program import alive, version
from simgpu.reports.rule import Rule


class GradientsNotUsed(Rule, about="time", often="each step"):
    text = (
        "The backward pass computes gradients of this model's weights, and no optimizer uses them. Write "
        "`with torch.no_grad():` around a teacher, or call `requires_grad_(False)` of the model once."
    )
    cure = "`torch.no_grad()`, or `model.requires_grad_(False)`"

    def begin(self) -> None:
        self._untrained: list[Pass] = []  # of models that no optimizer trains

    def on_judging(self, event: events.Judging) -> None:
        """Note calls of the step before: a program that trains their models by hand has done so meanwhile."""
        for call in self._untrained:
            if self._gets_gradients(call):
                self.note(call.line)
        self._untrained = []

    def on_judged(self, event: events.Judged) -> None:
        if event.call.used and not event.trained:
            self._untrained.append(event.call)

    def _gets_gradients(self, call: Pass) -> bool:
        """Return whether a backward pass has left gradients in a model whose weights are as they were."""
        weight, before = call.given[-1][0](), call.given[-1][1]
        unchanged = weight is not None and version(weight) == before
        return unchanged and any(one.grad is not None for one in alive(self.program.parts(call.model).parameters))


BAD = [("scores = model(x)\n", "scores = model(x) + TEACHER(x)\n", "TEACHER(x)")]
GOOD = {
    "a loss by a frozen model": ("scores = model(x)\n", "scores = TEACHER.requires_grad_(False)(model(x) @ BACK)\n"),
    "a teacher": ("scores = model(x)\n", "scores = model(x)\nwith torch.no_grad(): wanted = TEACHER(x)\n"),
}
