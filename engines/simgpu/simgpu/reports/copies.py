"""Which copies are none: weights that go on changing, data that each epoch changes once more?"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from simgpu.ground import places
from simgpu.ground.replacements import Replacements
from simgpu.reports.calls import watched

_IN_PLACE = ("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__")


class CopyWatch:
    """Watches what is taken for a copy; `note(code, line)` notes a habit, by default of the line here."""

    def __init__(self, put: Replacements, note: Callable[..., None], trained: WeakIdKeyDictionary) -> None:
        self._note, self._trained = note, trained
        self._step = 0
        self._states = WeakIdKeyDictionary()  # of models' states: the model, the line, step and version then
        self._changes = WeakIdKeyDictionary()  # by tensor: the step in which its part at an offset was changed last
        self._again = WeakIdKeyDictionary()  # tensors that were changed once more: the step and the line
        put.put(nn.Module, state_dict=self._keeping(nn.Module.state_dict))
        put.put(nn.Module, load_state_dict=watched(nn.Module.load_state_dict, self._on_load))
        put.put(torch, save=watched(torch.save, self._on_save))
        for name in _IN_PLACE:
            put.put(torch.Tensor, **{name: watched(getattr(torch.Tensor, name), self._on_change)})

    def end_step(self) -> None:
        """A step of the program has ended."""
        self._step += 1

    # ---- weights ------------------------------------------------------------------------------------------------
    def _keeping(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return `Module.state_dict`, after which it is known how the tensors of its result were then."""

        @functools.wraps(plain)
        def state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            state = plain(module, *args, **kwargs)
            if not args and "destination" not in kwargs:  # else it is a part
                now = weakref.ref(module), places.place(), self._step
                for value in state.values():
                    if isinstance(value, torch.Tensor) and not value.is_inference():
                        self._states[value] = (*now, value._version)
            return state

        return state_dict

    def _on_load(self, module: nn.Module, state: Any, *args: Any, **kwargs: Any) -> None:
        self._look(state)

    def _on_save(self, saved: Any, *args: Any, **kwargs: Any) -> None:
        self._look(saved)

    def _look(self, kept: Any) -> None:
        """Something is loaded or saved: a habit if it is a state that training has changed since it was taken."""
        for value in tree_leaves(kept) if len(self._states) else ():
            if isinstance(value, torch.Tensor) and value in self._states:
                reference, line, step, version = self._states[value]
                model = reference()
                is_trained = model is not None and any(one in self._trained for one in model.parameters())
                if is_trained and step < self._step and value._version != version:
                    self._note("state-is-no-copy", line)
                    return

    # ---- data ---------------------------------------------------------------------------------------------------
    def _on_change(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """A tensor is changed in place, by what depends on its old values."""
        if tensor.requires_grad or not tensor.dim() or tensor.is_inference() or type(tensor) is nn.Parameter:
            return
        base = tensor if tensor._base is None else tensor._base
        steps: Any = self._changes.setdefault(base, {})
        offset = tensor.storage_offset()
        before, steps[offset] = steps.get(offset, self._step), self._step
        if before < self._step - 1:  # a state that each step moves on is no data set
            self._again[base] = self._step, places.place()

    def given(self, tensor: torch.Tensor) -> None:
        """A tensor is copied to a GPU, or a model gets it."""
        base = tensor if tensor._base is None else tensor._base
        step, line = self._again.get(base) or (None, "")
        if step == self._step and line:
            self._note("data-changed-again", line)
