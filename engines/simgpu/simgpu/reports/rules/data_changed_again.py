"""Each epoch changes the data in place once more."""

from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule


class DataChangedAgain(Rule, about="result"):
    text = (
        "This changes the data in place, and in each epoch once more what the epoch before has left. Write "
        "`x = x + noise`, which makes a new tensor, or change a `.clone()`."
    )
    cure = "`x = x + noise`, which makes a new tensor"

    def begin(self) -> None:
        self._changes = WeakIdKeyDictionary()  # by tensor: the step in which its part at an offset was changed last
        self._again = WeakIdKeyDictionary()  # tensors that were changed once more: the step and the line

    def on_changed(self, event: events.Changed) -> None:
        tensor, now = event.tensor, self.program.step
        if tensor.requires_grad or not tensor.dim() or tensor.is_inference() or type(tensor) is nn.Parameter:
            return
        steps: Any = self._changes.setdefault(_base(tensor), {})
        offset = int(tensor.storage_offset())
        before, steps[offset] = steps.get(offset, now), now
        if before < now - 1:  # a state that each step moves on is no data set
            self._again[_base(tensor)] = now, places.place()

    def on_copied(self, event: events.Copied) -> None:
        if event.source.dim() and not self.program.running:
            self._look(event.source)

    def on_called(self, event: events.Called) -> None:
        for reference, _ in event.call.given:
            tensor = reference()
            if tensor is not None:
                self._look(tensor)

    def _look(self, tensor: Tensor) -> None:
        step, line = self._again.get(_base(tensor)) or (None, "")
        if step == self.program.step and line:
            self.note(line)


def _base(tensor: Tensor) -> Tensor:
    return tensor if tensor._base is None else tensor._base
