"""Ledger of the storages of a device: size, owner, line that made them, and when they were freed."""

import itertools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _get_current_dispatch_mode_stack
from torch.utils.hooks import RemovableHandle

from simgpu.accounting.owners import OWNERS, Moment, Parts, by_owner
from simgpu.ground import composite, nodes, places
from simgpu.ground.replacements import Replacements
from simgpu.ground.storages import local, states_of, storage_of, tensors_in, tensors_on
from simgpu.ground.torch_internals import Args, Kwargs, Operator

__all__ = [
    "OWNERS", "Ledger", "Moment", "Parts", "Record", "by_owner", "local", "states_of", "storage_of", "tensors_in",
    "tensors_on",
]  # fmt: skip

_WRAPPERS = ("DTensor", "AsyncCollectiveTensor")
_DISTRIBUTED = os.path.join(os.path.dirname(torch.__file__), "distributed")
_LIFT = torch.ops.aten.lift_fresh.default  # returns what `torch.tensor` has made out of sight


class Record(weakref.ref[torch.UntypedStorage]):
    """One storage, not kept alive: its size, its owner, the tensor it was made as, and what became of it."""

    __slots__ = ("before", "dtype", "freed", "key", "made", "nbytes", "owner", "serial", "shape", "used")
    serials = itertools.count(1)

    key: int
    serial: int
    nbytes: int
    owner: str
    made: str
    before: bool
    shape: tuple[int, ...]
    dtype: torch.dtype
    used: bool
    freed: bool

    @classmethod
    def of(
        cls, storage: torch.UntypedStorage, callback: "Callable[[Record], object] | None",
        tensor: "torch.Tensor | Record", nbytes: int, owner: str, made: str = "", before: bool = False,
    ) -> "Record":  # fmt: skip
        """Return the record of a storage that `tensor` was made with; `callback` is given it when the storage dies."""
        self = cls(storage, callback)
        self.key, self.serial = storage._cdata, next(Record.serials)
        self.nbytes, self.owner, self.made, self.before = nbytes, owner, made, before
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.used = self.freed = False
        return self


def _is_backends() -> bool:
    """Return whether who calls is PyTorch's distributed package: what nobody knows there is a buffer of gloo's own."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_DISTRIBUTED)


class Ledger(composite.Mode):
    """Keeps account of the storages on `device` while the context is open, by weak references: it keeps none alive.

    `change_bytes` is how many bytes more are alive than at the start, `change_of` the same by owner; `peak_bytes` its
    maximum after any operator, `at_peak` the records alive then, `earlier` those alive at the start. `samples` has
    a `Moment` with `change_bytes` for each operator but views.
    """

    places = True  # whether the line that makes each storage is looked up

    def __init__(self, device: torch.device, there: list[tuple[torch.Tensor, str]] | None = None) -> None:
        super().__init__()
        self.device, self.there = device, there  # tensors alive at the start with their owners, found if not given
        self.live: dict[int, Record] = {}
        # Records whose storages died. What a weak reference calls must not be Python code: Ctrl-C inside would be lost.
        self._dead: deque[Record] = deque()
        self.change_bytes = self.peak_bytes = 0
        self.change_of: dict[str, int] = dict.fromkeys(OWNERS, 0)
        self.at_peak: list[Record] = []
        self.earlier: list[Record] = []
        self.samples: list[Moment] = []
        self._lock = threading.RLock()
        self._steps = 0
        self._handles: list[RemovableHandle] = []
        self._replaced = Replacements()
        self._hooked: set[int] = set()

    # ---- what kinds of ledger do otherwise ----------------------------------------------------------------------
    def storage(self, tensor: torch.Tensor) -> torch.UntypedStorage | None:
        """Return the storage of a tensor if it is accounted here."""
        mine = tensor.device == self.device and not isinstance(tensor, FakeTensor)  # that has no memory
        return storage_of(tensor) if mine else None

    def size_bytes(self, storage: torch.UntypedStorage) -> int:
        """Return how many bytes a storage counts."""
        return storage.nbytes()

    def call(self, func: Operator, args: Args, kwargs: Kwargs) -> Any:
        """Run an operator and return its result."""
        return func(*args, **kwargs)

    def add(self, storage: torch.UntypedStorage, tensor: "torch.Tensor | Record", owner: str, before: bool) -> Record:
        """Return the record of a storage that is new here, or was there before."""
        made = places.place() if self.places and not before else ""
        record = Record.of(storage, self._dead.append, tensor, self.size_bytes(storage), owner, made, before)
        with self._lock:
            self.live[record.key] = record
            if before:
                self.earlier.append(record)
            else:
                self._count(owner, record.nbytes)
        return record

    def note(self, func: Operator, made_bytes: int) -> None:
        """Keep what is to be known of the moment after an operator, which made so many bytes."""
        if self.change_bytes > self.peak_bytes:
            self.peak_bytes, self.at_peak = self.change_bytes, list(self.live.values())
        self.sample(func)

    def sample(self, func: Operator) -> None:
        if not func.is_view:
            phase = nodes.phase(self._steps > 0)
            self.samples.append(Moment(func._overloadpacket.__name__, phase, self.change_bytes))

    # ---- entering and leaving -----------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        for tensor, owner in tensors_on(self.device) if self.there is None else self.there:
            self._record(tensor, owner)
        self._handles = [
            register_module_forward_pre_hook(self._before_forward),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self.at_peak, self.there = list(self.live.values()), None
        self._plain_resize = torch.UntypedStorage.resize_
        self._replaced.put(torch.UntypedStorage, resize_=lambda storage, nbytes: self._resize(storage, nbytes))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._hooked = [], set()
        self._replaced.undo()
        self._bury()
        # PyTorch takes away the mode that was entered last: it may be another's, which stays
        later: list[TorchDispatchMode] = []
        if self in _get_current_dispatch_mode_stack():
            while (mode := _get_current_dispatch_mode()) is not None and mode is not self:
                TorchDispatchMode.__exit__(mode, None, None, None)
                later.append(mode)
        super().__exit__(*error)
        for mode in reversed(later):
            TorchDispatchMode.__enter__(mode)

    # ---- every operator -----------------------------------------------------------------------------------------
    def __torch_dispatch__(self, func: Operator, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        if any(kind.__name__ in _WRAPPERS for kind in types):
            return NotImplemented  # PyTorch asks again for the tensors inside
        if func.namespace in ("prim", "profiler"):  # a question about a tensor, a mark for a profiler
            return func(*args, **kwargs)
        if func is not _LIFT:
            for tensor in tensors_in((args, kwargs)):
                self._use(tensor)
        result = self.call(func, args, kwargs)
        made_bytes = sum([self._enter_result(tensor) for tensor in tensors_in(result)])
        self._bury()
        try:
            self.note(func, made_bytes)
        except torch.OutOfMemoryError:
            # the traceback keeps this frame, and it must hold no tensor
            args, kwargs, result, tensor = (), {}, None, None
            raise
        return result

    def _resize(self, storage: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
        """Account a storage that grows or shrinks out of the dispatcher's sight, as those of FSDP do."""
        self._plain_resize(storage, nbytes)
        record = self._known(storage)
        if record is not None:
            self._grow(record, storage)
        return storage

    def _grow(self, old: Record, storage: torch.UntypedStorage) -> int:
        """Replace the record of a storage that was resized: what was alive at a peak keeps its size."""
        grown = self.size_bytes(storage) - old.nbytes
        if grown:
            with self._lock:
                old.freed = True
                self._count(old.owner, -old.nbytes)
                self.add(storage, old, old.owner, before=False).used = True
        return grown

    def _use(self, tensor: torch.Tensor) -> None:
        record = self._record(tensor, "activations")
        if record is None:
            return
        record.used = True
        if isinstance(tensor, nn.Parameter):
            self._label(tensor, "parameters")
            if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self._hooked:
                self._hooked.add(id(tensor))
                hook = lambda parameter: self._label(parameter.grad, "gradients")  # noqa: E731
                self._handles.append(tensor.register_post_accumulate_grad_hook(hook))

    def _enter_result(self, tensor: torch.Tensor) -> int:
        """Account the result of an operator, and return the new bytes."""
        storage = self.storage(tensor)
        if storage is None:
            return 0
        record = self._known(storage)
        if record is None:
            forward = nodes.phase(self._steps > 0) == "forward" or nodes.records_graph()
            return self.add(storage, tensor, "activations" if forward else "temporaries", before=False).nbytes
        return max(self._grow(record, storage), 0)

    # ---- records ------------------------------------------------------------------------------------------------
    def _record(self, tensor: torch.Tensor, owner: str) -> Record | None:
        """Return the record of a tensor's storage, which was there before if nothing is known of it."""
        storage = self.storage(tensor)
        if storage is None:
            return None
        known = self._known(storage)
        if known is None and not _is_backends():
            return self.add(storage, tensor, owner, before=True)
        return known

    def _count(self, owner: str, nbytes: int) -> None:
        self.change_bytes += nbytes
        self.change_of[owner] += nbytes

    def _known(self, storage: torch.UntypedStorage) -> Record | None:
        self._bury()  # a new storage may lie where a dead one lay
        return self.live.get(storage._cdata)

    def _bury(self) -> None:
        """Take the bytes of dead storages off. Python looks for Ctrl-C between calls only, so that each step is whole
        or can be repeated."""
        while self._dead:
            with self._lock:
                if not self._dead:
                    break  # another thread was faster
                record = self._dead[0]
                if not record.freed:
                    record.freed = True
                    self.change_bytes -= record.nbytes
                    self.change_of[record.owner] -= record.nbytes
                if self.live.get(record.key) is record:
                    del self.live[record.key]
                self._dead.popleft()

    # ---- owners -------------------------------------------------------------------------------------------------
    def _label(self, tensor: object, owner: str) -> None:
        """Return the owner of a tensor, if it is known."""
        storage = self.storage(tensor) if isinstance(tensor, torch.Tensor) else None
        record = None if storage is None else self._known(storage)
        if record is not None and record.owner != owner:
            with self._lock:
                if not record.before:
                    self.change_of[record.owner] -= record.nbytes
                    self.change_of[owner] += record.nbytes
                record.owner = owner

    def _before_forward(self, module: nn.Module, inputs: object) -> None:
        self._steps = 0  # a step that raised did not say that it ended
        for buffer in module._buffers.values():
            self._label(buffer, "parameters")

    def _before_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._steps += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._label(parameter.grad, "gradients")

    def _after_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._steps = max(self._steps - 1, 0)
        for tensor in states_of(optimizer):
            self._label(tensor, "optimizer")
