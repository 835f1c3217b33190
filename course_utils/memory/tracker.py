"""What does PyTorch's MemTracker say, in the words of this course?

MemTracker (torch.distributed._tools.mem_tracker) is private to PyTorch: this is the one module that knows it. It
follows storages by weak references and says parameter, gradient, activation, … of each. Ours differs in this: what the
optimizer's step makes besides its state counts as temporary; every operator but views leaves a sample; and modules are
not followed one by one, which takes minutes where there are thousands, and whose hooks keep models alive in cycles.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from course_utils.memory.fakes import with_workspace
from course_utils.memory.parts import OWNERS, Parts
from course_utils.memory.storages import phase, tensors_in

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
        self._mod_tracker = _Modules()
        self.track_external(model, optimizer, *tensors_in(batch))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._track_module_params_and_buffers(nn.ParameterList(trained))  # with hooks that tell gradients

    def begin_step(self) -> None:
        """Let `largest` count from now."""
        self.largest = dict.fromkeys(OWNERS, 0)

    def _pre_fw_hook(self, module: nn.Module, inputs: object) -> None:
        if self._mod_tracker.is_bw and self._ac_mod is None:  # a forward pass within the backward pass: recomputation
            self._in_ac, self._ac_mod = True, weakref.ref(module)

    def _post_fw_hook(self, module: nn.Module, inputs: object, outputs: object) -> None:
        if self._ac_mod is not None and self._ac_mod() is module:
            self._in_ac, self._ac_mod = False, None

    def _track(self, reftype, tensor) -> None:
        if tensor.layout is not torch.strided:
            raise RuntimeError(f"the estimate has no tensors of layout {tensor.layout}: leave sparse=True out of it")
        super()._track(_MemRefType.TEMP if reftype is _MemRefType.OPT else reftype, tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "prim":  # a question, such as the device of a fake tensor
            return func(*args, **(kwargs or {}))
        for tensor in tensors_in((args, kwargs)):  # what was there before and is no parameter, such as a constant
            super()._track(_MemRefType.ACT, tensor)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        held = with_workspace(func, args, result)
        if held is not result:
            for tensor in tensors_in(held):
                super()._track(_MemRefType.ACT, tensor)
        result = held
        self._note(func)
        return result

    def _update_peak_stats(self, peak_state) -> None:
        """MemTracker would go through all modules here, at every operator."""

    def _note(self, func) -> None:
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
        if total >= self._most_bytes:  # of equals the last: only after the first step is the state known as such
            self._most_bytes, self.peak = total, Parts.of(parts)
        if not func.is_view:
            self.samples.append((func._overloadpacket.__name__, phase(self._in_opt), total))


class _Modules:
    """Stands in for PyTorch's ModTracker: tells when modules run forward, and whether a backward pass is running."""

    is_bw = property(lambda self: torch._C._current_graph_task_id() != -1)

    def register_user_hooks(self, before, after, *of_backward) -> None:
        self._hooks = before, after

    def clear_user_hooks(self) -> None:
        self._hooks = None

    def __enter__(self) -> None:
        before, after = self._hooks
        self._handles = (
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, always_call=True),
        )

    def __exit__(self, *error) -> None:
        for handle in self._handles:
            handle.remove()
