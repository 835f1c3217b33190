"""A `state_dict()` that was kept has changed with the weights."""

import weakref

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.ground import places
from simgpu.reports import events
from simgpu.reports.rule import Rule


class StateIsNoCopy(Rule, about="result"):
    text = (
        "`state_dict()` holds the weights themselves, and later steps have changed them, so this keeps no earlier "
        "state. Write `copy.deepcopy(model.state_dict())`."
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
        """Note a state that is loaded or saved if training has changed it since it was taken."""
        for value in tree_leaves(event.state) if len(self._states) else ():
            if isinstance(value, torch.Tensor) and value in self._states:
                reference, line, step, version = self._states[value]
                model = reference()
                is_trained = model is not None and any(one in self.program.trained for one in model.parameters())
                if is_trained and step < self.program.step and value._version != version:
                    self.note(line)
                    return
