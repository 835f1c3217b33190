"""What does PyTorch's MemTracker say, in the words of this course?

MemTracker (torch.distributed._tools.mem_tracker) is private to PyTorch: this is the one module that knows it. It
follows storages by weak references and says parameter, gradient, activation, … of each. Ours differs in this: what the
optimizer's step makes besides its state counts as temporary, every operator leaves a sample, and statistics by module
are not kept (with them, a model of thousands of modules takes minutes).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType

from course_utils._memory_fake import with_workspace
from course_utils._memory_parts import OWNERS, Parts
from course_utils._memory_storages import phase

__all__ = ["Tracker"]

_OWNER = {
    _MemRefType.PARAM: "parameters",
    _MemRefType.BUFFER: "parameters",
    _MemRefType.GRAD: "gradients",
    _MemRefType.OPT: "optimizer",
    _MemRefType.ACT: "activations",
    _MemRefType.OTH: "activations",
    _MemRefType.TEMP: "temporaries",
}


class Tracker(MemTracker):
    """Follows what a model, its batch and its optimizer have on `device`: `peak`, `largest` and `samples`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator of a process loads the whole compiler, which takes a second

    def __init__(self, device: torch.device, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self._target = device
        self.peak = Parts()
        self.largest = dict.fromkeys(OWNERS, 0)
        self.samples: list[tuple[str, str, int]] = []
        self._most_bytes = 0
        self.track_external(model, optimizer, batch)

    def begin_step(self) -> None:
        """Forget what the step before left in statistics; MemTracker refuses a second step otherwise."""
        self.reset_mod_stats()
        self._in_ac, self._ac_mod = False, None
        self.largest = dict.fromkeys(OWNERS, 0)

    def _track(self, reftype, tensor) -> None:
        super()._track(_MemRefType.TEMP if reftype is _MemRefType.OPT else reftype, tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "prim":  # a question, such as the device of a fake tensor
            return func(*args, **(kwargs or {}))
        result = with_workspace(func, args, super().__torch_dispatch__(func, types, args, kwargs))
        if func is torch.ops.aten.mkldnn_rnn_layer.default:
            super()._track(_MemRefType.ACT, result[3])
        self._note(func._overloadpacket.__name__)
        return result

    def _update_peak_stats(self, peak_state) -> None:
        """MemTracker would go through all modules here, at every operator."""

    def _note(self, operator: str) -> None:
        snapshot = self._curr_mem_snap.get(self._target)
        if snapshot is None:
            return
        parts = dict.fromkeys(OWNERS, 0)
        for kind, owner in _OWNER.items():
            parts[owner] += snapshot[kind]
        total = sum(parts.values())
        for owner, size in parts.items():
            if size > self.largest[owner]:
                self.largest[owner] = size
        if total > self._most_bytes:
            self._most_bytes, self.peak = total, Parts.of(parts)
        self.samples.append((operator, phase(self._in_opt), total))
