"""The same tensor or model is copied in each step."""

from torch.utils.weak import WeakIdKeyDictionary

from simgpu.reports import events
from simgpu.reports.program import version
from simgpu.reports.rule import Rule


class MovedInEachStep(Rule, about="time", often="each step"):
    text = "This copies the same tensor to the GPU in each step. Move it once, before the loop."
    cure = "move it once, before the loop"

    def begin(self) -> None:
        self._sent = WeakIdKeyDictionary()  # versions and steps of tensors when they were copied to a GPU

    def on_copied(self, event: events.Copied) -> None:
        source = event.source
        if self.program.running or not source.dim():
            return
        now = version(source)
        if self._sent.get(source) == (now, self.program.step - 1):
            self.note()
        self._sent[source] = now, self.program.step
