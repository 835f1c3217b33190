"""Accounts of the bytes alive on the simulated GPUs: capacity, budgets, out of memory."""

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

from simgpu.ground import device_kind


class _StorageRef(weakref.ref):
    __slots__ = ("gpu", "key", "nbytes", "stream")


class Held(dict[int, list[torch.Tensor]]):
    """Tensors of a captured graph, by storage. They keep its values, and count for no GPU."""

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]
    seeds: Any = None  # what its generators have in the GPU's memory


class Gpu:
    """Memory of one simulated GPU: bytes of living storages, their peak, and the capacity that they must stay under."""

    def __init__(self, index: int, capacity_bytes: int, settle: Callable[[], None] = lambda: None) -> None:
        self.index, self._settle = index, settle
        self.counted_bytes = self.peak_bytes = self.allocations = 0
        self.storages = self.most_storages = 0  # alive now, and the most at once
        self.sum_bytes = 0  # of all that were ever allocated
        self.cache: Any = None  # an `allocator.Allocator` where one is asked for; then bytes are those of its blocks
        self.budgets: list[tuple[int, int]] = []
        self.context_bytes = 0  # of the capacity: what CUDA's context takes, which no tensor can have
        self.capacity_bytes = capacity_bytes

    def _set_capacity(self, size: int) -> None:
        self._capacity_bytes = size
        self._tighten()

    def _allocated(self) -> int:
        self._settle()
        return self.counted_bytes

    def _set_allocated(self, nbytes: int) -> None:
        self._settle()
        self.counted_bytes = nbytes

    allocated_bytes = property(_allocated, _set_allocated, doc="Bytes of the storages that are alive.")
    capacity_bytes = property(lambda self: self._capacity_bytes, _set_capacity)
    room_bytes = property(lambda self: self._capacity_bytes - self.context_bytes, doc="What tensors may have of it.")

    def _tighten(self) -> None:
        """Apply the tightest limit, capacity or a budget: allowed live bytes, and bytes excluded from it."""
        self.limit_bytes, self._outside_bytes = min([(self.room_bytes, 0), *self.budgets])

    @contextmanager
    def budget(self, nbytes: int) -> Generator[None]:
        """Inside, at most `nbytes` more may be alive than at the start; messages call that the capacity."""
        budget = (self.allocated_bytes + nbytes, self.allocated_bytes)
        self.budgets.append(budget)
        self._tighten()
        try:
            yield
        finally:
            if budget in self.budgets:  # else somebody has put the limits back in between
                self.budgets.remove(budget)
            self._tighten()

    def require(self, nbytes: int) -> None:
        """Raise `torch.OutOfMemoryError` in CUDA's words unless `nbytes` more fit."""
        if self.allocated_bytes + nbytes > self.limit_bytes:
            if self.cache is not None and self.limit_bytes == self.room_bytes:
                self.cache.malloc(nbytes)  # which finds no place either, and says so in its own words
            allocated, capacity = self.allocated_bytes - self._outside_bytes, self.limit_bytes - self._outside_bytes
            limited = self.limit_bytes != self.room_bytes
            if device_kind.kind == "mps" and not limited:
                raise out_of_memory_of_mps(nbytes, capacity, allocated)
            raise out_of_memory(
                device_kind.title(), f"GPU {self.index}", nbytes, capacity, allocated,
                None if limited else self.context_bytes,
            )  # fmt: skip


class Accounts:
    """The storages that are alive on the simulated GPUs, by weak references: the account keeps none alive."""

    def __init__(self, gpus: int, capacity_bytes: int, lock: threading.RLock) -> None:
        self.lock = lock
        self.at_first: Callable[[], None] | None = (
            None  # is called before the next storage is accounted, then forgotten
        )
        self.races: Any = None  # the `device.races.Races` of a program that wants to know of them
        self.watcher: Any = None  # the `reports.holdings.Holdings` of a session that wants a report
        self.live: dict[int, _StorageRef] = {}  # by address
        # Storages that died. What a weak reference calls must not be Python code: Ctrl-C inside would be lost.
        self.dead: deque[_StorageRef] = deque()
        self._on_free = self.dead.append
        self.holders: weakref.WeakSet[Held] = weakref.WeakSet()
        self.gpus = [Gpu(index, capacity_bytes, self.settle) for index in range(gpus)]
        self.stream: Callable[[int], int] = lambda index: 0  # the current one of a GPU

    def restart(self) -> None:
        """Reset every peak to the bytes that are alive now."""
        for gpu in self.gpus:
            gpu.peak_bytes = gpu.allocated_bytes

    def own(self, inner: torch.Tensor, index: int) -> bool:
        """Account the storage of `inner` to GPU `index`; return whether it is new. Raises if it does not fit."""
        storage = inner.untyped_storage()
        if self.dead:
            self.bury()
        known = self.live.get(storage._cdata)
        if known is None:
            self.own_storage(storage, index)
        elif storage.nbytes() != known.nbytes:  # resize_ grew or shrank it
            with self.lock:
                self.charge(known, storage.nbytes(), known.nbytes)
        return known is None

    def own_storage(self, storage: torch.UntypedStorage, index: int) -> None:
        """Account a new storage to GPU `index`. Raises if it does not fit."""
        if self.dead:
            self.bury()
        if self.at_first is not None:
            called, self.at_first = self.at_first, None
            called()
        ref, gpu, nbytes, key = _StorageRef(storage, self._on_free), self.gpus[index], storage.nbytes(), storage._cdata
        ref.gpu, ref.key, ref.nbytes, ref.stream = gpu, key, 0, self.stream(index)
        with self.lock:
            self.live[key] = ref  # first: a reference that nobody holds would not say when its storage dies
            try:
                self.charge(ref, nbytes, 0)
            except torch.OutOfMemoryError:
                del self.live[key]
                if self.watcher is not None:
                    self.watcher.refused(gpu.index, nbytes)
                raise
            gpu.allocations += 1
            gpu.storages += 1
            gpu.most_storages = max(gpu.most_storages, gpu.storages)
        if self.races is not None:
            self.races.made(key, index, nbytes)

    def charge(self, ref: _StorageRef, nbytes: int, before: int) -> None:
        """Account `nbytes` to a storage that had `before`. Raises if they do not fit."""
        gpu = ref.gpu
        if gpu.cache is not None:
            gpu.cache.charge(ref, nbytes)
        else:
            total = gpu.counted_bytes + nbytes - before
            if total > gpu.limit_bytes:
                gpu.require(nbytes - before)
            if total > gpu.counted_bytes:
                gpu.sum_bytes += total - gpu.counted_bytes
            gpu.counted_bytes, ref.nbytes = total, nbytes
            gpu.peak_bytes = max(gpu.peak_bytes, total)
        if self.watcher is not None:
            self.watcher.charged(ref)

    def settle(self) -> None:
        """Take the bytes off of storages that died, and of those that nothing but captured graphs still holds."""
        if self.holders:
            held = Counter[int]()
            for holder in list(self.holders):
                held.update({key: len(tensors) for key, tensors in holder.items() if key in self.live})
            uses = torch._C._storage_Use_Count
            self.dead += [self.live[key] for key, count in held.items() if uses(key) <= count + 1]  # one is Python's
        if self.dead:
            self.bury()

    def bury(self) -> None:
        """Take the bytes of dead storages off. Python looks for Ctrl-C between calls only, so that each step is whole
        or can be repeated."""
        dead, live = self.dead, self.live
        with self.lock:
            while dead:
                ref = dead[0]
                gpu, key = ref.gpu, ref.key
                is_there = live.get(key) is ref
                if self.watcher is not None:
                    self.watcher.gone(ref)
                if self.races is not None and is_there:
                    self.races.gone(key, ref.nbytes)
                if gpu.cache is not None:
                    gpu.cache.drop(ref)
                else:
                    gpu.counted_bytes, ref.nbytes = gpu.counted_bytes - ref.nbytes, 0
                if is_there:
                    del live[key]
                    gpu.storages -= 1
                dead.popleft()


ADVICE = (  # the two spaces are PyTorch's
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def out_of_memory(
    kind: str, where: str, nbytes: int, capacity: int, allocated: int, context: int | None = None
) -> torch.OutOfMemoryError:
    """Return CUDA's error when `nbytes` more do not fit into `capacity` bytes of which `allocated` are taken.

    Where that is the room of a whole GPU beside its `context`, and no budget, it says what CUDA's says of the process
    and the allocator.
    Source: the texts in libc10_cuda of torch 2.11 and 2.15.
    """
    free, taken = size_text(max(capacity - allocated, 0)), size_text(max(allocated, 0))
    whole = context is not None
    used, total = size_text(max(allocated, 0) + (context or 0)), size_text(capacity + (context or 0))
    process = f"Including non-PyTorch memory, this process has {used} memory in use. " if whole else ""
    advice = ADVICE if whole else ""
    if kind == "XPU":  # XPUCachingAllocator.cpp of c10/xpu
        process, advice = "", " Please use `empty_cache` to release all unoccupied cached memory."
    return torch.OutOfMemoryError(
        f"{kind} out of memory. Tried to allocate {size_text(nbytes)}. {where} has a total capacity of "
        f"{total} of which {free} is free. {process}Of the allocated memory {taken} is allocated by PyTorch, and "
        f"0 bytes is reserved by PyTorch but unallocated.{advice}"
    )


_LARGEST_BUFFER_BYTES = 2**33  # of Metal, at least: half the memory of a Mac


def out_of_memory_of_mps(nbytes: int, allowed: int, allocated: int) -> RuntimeError:
    """Return MPS's error when `nbytes` more than the `allocated` ones are more than `allowed` (MPSAllocator.mm)."""
    if nbytes > max(_LARGEST_BUFFER_BYTES, allowed):
        return RuntimeError(f"Invalid buffer size: {size_text(nbytes)}")
    return RuntimeError(
        f"MPS backend out of memory (MPS allocated: {size_text(allocated)}, other allocations: 0 bytes, max allowed: "
        f"{size_text(allowed)}). Tried to allocate {size_text(nbytes)} on private pool. Use "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure)."
    )


def size_text(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"
