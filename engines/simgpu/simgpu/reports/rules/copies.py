"""Rules on what is copied, changed or saved again and again."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.clock.lines import Row
from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.calls import version
from simgpu.reports.rule import SHARE_OF_FEW, Rule, WaitRule

_FEW_NUMBERS = 4096  # of a constant: more are looked at too long


class CopiesNotPinned(WaitRule):
    """`non_blocking=True` does nothing, since the memory that is copied is not pinned."""

    cure = "`pin_memory=True` in the loader, or `.pin_memory()`"

    @classmethod
    def is_worth(cls, row: Row, step_s: float, epoch_s: float) -> bool:
        return row.seconds >= SHARE_OF_FEW * step_s


class MovedInEachStep(Rule, about="time", often="each step", explains=("constant-copied-in-each-step",)):
    """The same tensor or model is copied in each step."""

    text = "This copies the same tensor to the GPU in each step. Move it once, before the loop."
    cure = "move it once, before the loop"

    def begin(self) -> None:
        self._sent = WeakIdKeyDictionary()  # of tensors that were copied to a GPU: version, first and last step

    def on_copied(self, event: events.Copied) -> None:
        source = event.source
        if self.program.running or not source.dim():
            return
        now, step = version(source), self.program.step
        before, first, last = self._sent.get(source) or (now, step, step)
        if before == now and first < last == step - 1:  # the state after an action is that before the next: two steps
            self.note()
        self._sent[source] = now, first, step


class ConstantCopiedInEachStep(Rule, about="time", often="each step"):
    """A tensor with the same numbers is made on the CPU in each step, and copied."""

    text = "Each step makes a tensor of the same numbers on the CPU and copies it. Make it once, before the loop."
    cure = "make it once, before the loop"

    def begin(self) -> None:
        self._numbers: dict[str, Tensor | None] = {}  # that a line has copied in all steps until now

    def on_copied(self, event: events.Copied) -> None:
        """Note a line that copies the same few numbers, which differ: rewards and masks may be all zeros or ones."""
        source, line = event.source, places.place()
        known = self._numbers.get(line, source)
        if known is not None and not self.program.running and not self.program.only_batch:
            is_made = type(source) is Tensor and source._base is None and not source.requires_grad
            few = is_made and 1 < source.numel() <= _FEW_NUMBERS
            kept = few and torch.equal(source, known) and bool((source != source.flatten()[0]).any())
            if kept and line in self._numbers:
                self.note(line)
            self._numbers[line] = source.clone() if kept else None


class SavedInEachStep(Rule, about="time", often="each step"):
    """A file is written in each step."""

    text = "This writes a file in each step. Save once in an epoch, or every few hundred steps."
    cure = "save once in an epoch, or every few hundred steps"

    def begin(self) -> None:
        self._saved: dict[str, tuple[int, int]] = {}  # epoch and step in which a line has saved something

    def on_kept(self, event: events.Kept) -> None:
        """Note a line that has saved in an earlier step of the same epoch."""
        if event.model is not None:
            return
        line, now = places.place(), self.program.step
        epoch, step = self._saved.get(line, (-1, -1))
        if epoch == self.program.begun and step != now:
            self.note(line)
        self._saved[line] = self.program.begun, now


class StateIsNoCopy(Rule, about="result"):
    """A `state_dict()` that was kept is the weights themselves."""

    text = (
        "`state_dict()` holds the weights themselves, which every later step changes, so this keeps no earlier state. "
        "Write `copy.deepcopy(model.state_dict())`."
    )
    cure = "`copy.deepcopy(model.state_dict())`"

    def begin(self) -> None:
        self._states = WeakIdKeyDictionary()  # of models' states: the model, the line, step and version then

    def on_state_taken(self, event: events.StateTaken) -> None:
        now = weakref.ref(event.model), places.place(), self.program.step
        for value in event.state.values():
            if isinstance(value, torch.Tensor) and not value.is_inference():
                self._states[value] = (*now, value._version)

    def on_kept(self, event: events.Kept) -> None:
        """Note a state that training has changed since it was taken, or that is the loaded model's own still."""
        for value in tree_leaves(event.state) if len(self._states) else ():
            if isinstance(value, torch.Tensor) and value in self._states:
                reference, line, step, version = self._states[value]
                model = reference()
                is_trained = model is not None and any(one in self.program.trained for one in model.parameters())
                own = model is event.model and step > 0 and value._version == version and line != places.place()
                if is_trained and (own or (step < self.program.step and value._version != version)):
                    self.note(line)
                    return


class DataChangedAgain(Rule, about="result"):
    """Each epoch changes the data in place once more."""

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
        for tensor in (one.tensor() for one in event.call.given):
            if tensor is not None:
                self._look(tensor)

    def _look(self, tensor: Tensor) -> None:
        step, line = self._again.get(_base(tensor)) or (None, "")
        if step == self.program.step and line:
            self.note(line)


def _base(tensor: Tensor) -> Tensor:
    return tensor if tensor._base is None else tensor._base
