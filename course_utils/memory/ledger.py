"""Which storages did a program make on a device, how large, whose, in which line, and when were they freed?"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.memory.storages import found, phase, place, storage_of, tensors_in

__all__ = ["Ledger", "Record", "Ref"]


_LIFT = torch.ops.aten.lift_fresh.default  # returns what `torch.tensor` has made out of sight


class Record:
    """One storage: its size, its owner, the tensor it was made as, and what became of it."""

    __slots__ = ("before", "dtype", "freed", "made", "nbytes", "owner", "serial", "shape", "used")
    serials = itertools.count(1)

    def __init__(self, tensor: torch.Tensor, nbytes: int, owner: str, made: str = "", before: bool = False) -> None:
        self.nbytes, self.owner, self.made, self.before = nbytes, owner, made, before
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.used = self.freed = False
        self.serial = next(Record.serials)


class Ref(weakref.ref):
    """Refers to a storage weakly, and knows its key and its record when it is gone."""

    __slots__ = ("key", "record")

    def __new__(cls, storage: torch.UntypedStorage, record: Record, callback: Callable[[Ref], None]) -> Ref:
        ref = super().__new__(cls, storage, callback)
        ref.key, ref.record = storage._cdata, record
        return ref

    def __init__(self, storage: torch.UntypedStorage, record: Record, callback: Callable[[Ref], None]) -> None:
        super().__init__(storage, callback)


class Ledger(TorchDispatchMode):
    """Keeps account of the storages on `device` while the context is open, by weak references: it keeps none alive.

    `change_bytes` is how many bytes more are alive than at the start; `peak_bytes` its maximum after any operator;
    `at_peak` the records alive then. `samples` has (operator, phase, change_bytes) for each operator but views.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator of a process loads the whole compiler, which takes a second

    def __init__(self, device: torch.device, *, samples: bool = True, places: bool = True) -> None:
        super().__init__()
        self.device, self.places = device, places
        self.live: dict[int, Ref] = {}
        self.change_bytes = self.peak_bytes = 0
        self.at_peak: list[Record] = []
        self.samples: list[tuple[str, str, int]] | None = [] if samples else None
        self.earlier: list[Record] = []  # alive at the start
        self._lock = threading.RLock()
        self._steps = 0
        self._handles: list = []
        self._hooked: set[int] = set()
        self._callback = _forget_through(weakref.ref(self))

    # ---- entering and leaving -----------------------------------------------------------------------------------
    def __enter__(self):
        for tensor, owner in found(self.device):
            self._enter_storage(tensor, owner, before=True)
        self._handles = [
            register_module_forward_pre_hook(self._before_forward),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self.at_peak = self.records()
        return super().__enter__()

    def __exit__(self, *error):
        for handle in self._handles:
            handle.remove()
        self._handles, self._hooked = [], set()
        return super().__exit__(*error)

    def records(self) -> list[Record]:
        """Return the records of what is alive now."""
        return [ref.record for ref in list(self.live.values())]

    # ---- every operator -----------------------------------------------------------------------------------------
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a question, such as the device of a tensor
            return func(*args, **kwargs)
        if func is not _LIFT:
            for tensor in tensors_in((args, kwargs)):
                self._use(tensor)
        result = func(*args, **kwargs)
        made_bytes = sum([self._enter_result(tensor) for tensor in tensors_in(result)])
        if self.change_bytes > self.peak_bytes:
            try:
                self.check(made_bytes)
            except torch.OutOfMemoryError:
                result = args = kwargs = tensor = None  # the traceback keeps this frame, and it must hold no tensor
                raise
            self.peak_bytes, self.at_peak = self.change_bytes, self.records()
        if self.samples is not None and not func.is_view:
            self.samples.append((func._overloadpacket.__name__, phase(self._steps > 0), self.change_bytes))
        return result

    def check(self, made_bytes: int) -> None:
        """Raise where `change_bytes` may not be as large as it is; the ledger itself has no limit."""

    def _mine(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self.device and not isinstance(tensor, FakeTensor)  # that has no memory

    def _use(self, tensor: torch.Tensor) -> None:
        if not self._mine(tensor):
            return
        record = self._record(tensor) or self._enter_storage(tensor, "activations", before=True)
        if record is None:
            return
        record.used = True
        if isinstance(tensor, nn.Parameter):
            record.owner = "parameters"
            if tensor.requires_grad and id(tensor) not in self._hooked:
                self._hooked.add(id(tensor))
                self._handles.append(tensor.register_post_accumulate_grad_hook(self._accumulated))

    def _enter_result(self, tensor: torch.Tensor) -> int:
        """Account what an operator returned, and return the bytes that are new."""
        if not self._mine(tensor):
            return 0
        record = self._record(tensor)
        if record is None:
            here = phase(self._steps > 0)
            owner = "activations" if here in ("forward", "recomputation") else "temporaries"
            record = self._enter_storage(tensor, owner)
            return 0 if record is None else record.nbytes
        storage = storage_of(tensor)
        grown = storage.nbytes() - record.nbytes
        if grown:
            with self._lock:
                record.nbytes += grown
                self.change_bytes += grown
        return max(grown, 0)

    # ---- records ------------------------------------------------------------------------------------------------
    def _record(self, tensor: torch.Tensor) -> Record | None:
        storage = storage_of(tensor)
        ref = None if storage is None else self.live.get(storage._cdata)
        return None if ref is None else ref.record

    def _enter_storage(self, tensor: torch.Tensor, owner: str, before: bool = False) -> Record | None:
        storage = storage_of(tensor)
        if storage is None:
            return None
        known = self.live.get(storage._cdata)
        if known is not None:
            return known.record
        made = place() if self.places and not before else ""
        ref = Ref(storage, Record(tensor, storage.nbytes(), owner, made, before), self._callback)
        with self._lock:
            self.live[ref.key] = ref
            if before:
                self.earlier.append(ref.record)
            else:
                self.change_bytes += ref.record.nbytes
        return ref.record

    def _forget(self, ref: Ref) -> None:
        with self._lock:
            if self.live.get(ref.key) is ref:
                del self.live[ref.key]
            ref.record.freed = True
            self.change_bytes -= ref.record.nbytes

    # ---- owners -------------------------------------------------------------------------------------------------
    def _label(self, tensor: object, owner: str) -> None:
        if isinstance(tensor, torch.Tensor) and self._mine(tensor):
            record = self._record(tensor)
            if record is not None:
                record.owner = owner

    def _accumulated(self, parameter: nn.Parameter) -> None:
        self._label(parameter.grad, "gradients")

    def _before_forward(self, module: nn.Module, inputs: object) -> None:
        self._steps = 0  # a step that raised did not say that it ended
        for buffer in module._buffers.values():
            self._label(buffer, "parameters")

    def _before_step(self, optimizer, args, kwargs) -> None:
        self._steps += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._label(parameter.grad, "gradients")

    def _after_step(self, optimizer, args, kwargs) -> None:
        self._steps = max(self._steps - 1, 0)
        for tensor in tensors_in([list(state.values()) for state in optimizer.state.values()]):
            self._label(tensor, "optimizer")


def _forget_through(ledger: weakref.ref):
    """Return the callback of weak references: it must not keep the ledger alive."""

    def forget(ref: Ref) -> None:
        alive = ledger()
        if alive is not None:
            alive._forget(ref)

    return forget
