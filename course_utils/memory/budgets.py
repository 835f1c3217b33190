"""What happens when memory is smaller than it is? A limit on the bytes that a block may have alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from course_utils import plots, simulator
from course_utils.base import arguments
from course_utils.memory.ledger import Ledger
from course_utils.memory.storages import resolve

__all__ = ["Budget", "budget"]


class Budget:
    """What a budget allows and how much of it was used so far; all bytes are counted from the start of the block."""

    def __init__(self, limit_bytes: int, device: torch.device) -> None:
        self.limit_bytes, self.device = limit_bytes, device
        self._read = lambda: (0, 0)

    @property
    def used_bytes(self) -> int:
        """Bytes alive now, beyond those that were alive at the start (never below 0)."""
        return max(self._read()[0], 0)

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once so far, beyond those that were alive at the start."""
        return max(self._read()[1], 0)

    @property
    def left_bytes(self) -> int:
        """Bytes that still fit."""
        return self.limit_bytes - self._read()[0]

    def __str__(self) -> str:
        limit, peak = plots.bytes_text(self.limit_bytes), plots.bytes_text(self.peak_bytes)
        return f"budget of {limit} on {self.device}: at most {peak} used ({self.peak_bytes / self.limit_bytes:.0%})"

    __repr__ = __str__


class _Limited(Ledger):
    """A ledger that raises at the operation that goes over."""

    def __init__(self, device: torch.device, limit_bytes: int) -> None:
        super().__init__(device, samples=False, places=False)
        self.limit_bytes = limit_bytes

    def check(self, made_bytes: int) -> None:
        if self.change_bytes > self.limit_bytes and made_bytes:
            kind, index = self.device.type, self.device.index
            where = "The budget" if index is None else f"GPU {index}"
            raise simulator.out_of_memory(
                kind.upper() if kind == "cuda" else kind, where, made_bytes, self.limit_bytes,
                self.change_bytes - made_bytes,
            )  # fmt: skip


@contextmanager
def budget(size: str | int, device: torch.device | str | None = None) -> Iterator[Budget]:
    """Let the block have at most `size` ("64 MiB" or bytes) alive on the device beyond what was alive at its start.

    The operation that goes over raises `torch.OutOfMemoryError` in CUDA's words; its result does not exist then, all
    else is as before the operation, and the block may catch the error and go on. Leaving the block, also by an
    exception, takes the limit away. Budgets may be nested: the tightest holds. `device` is DEVICE (`devices.pick()`)
    unless given; with several simulated GPUs the same limit holds on each of them. Garbage is collected at the start.

    On the simulated GPU the limit is part of its accounting. Elsewhere, CUDA included, each operator's result is added
    to an account of living storages, in bytes: exact for tensors, blind for what libraries and the caching allocator
    take besides, and for work of other Python threads (not of the backward pass). A tensor that `resize_` or `out=`
    made larger stays so when that raised: its memory is another's, which the account cannot take back. Yields a
    `Budget`.
    """
    limit_bytes = arguments.size_bytes("size", size)
    device = resolve(device)
    result = Budget(limit_bytes, device)
    with ExitStack() as stack:
        if device.type == "sim":
            _limit_simulated(stack, result)
        else:
            gc.collect()
            ledger = stack.enter_context(_Limited(device, limit_bytes))
            result._read = lambda: (ledger.change_bytes, ledger.peak_bytes)
        try:
            yield result
        finally:
            last = result._read()
            result._read = lambda: last


def _limit_simulated(stack: ExitStack, result: Budget) -> None:
    world = simulator.world()
    if any(gpu.allocated_bytes for gpu in world.gpus):
        gc.collect()
    for gpu in world.gpus:
        stack.enter_context(gpu.budget(result.limit_bytes))
    gpu = world.gpus[result.device.index or 0]
    start_bytes = stack.enter_context(fresh_peak(gpu))
    result._read = lambda: (gpu.allocated_bytes - start_bytes, gpu.peak_bytes - start_bytes)


@contextmanager
def fresh_peak(gpu) -> Iterator[int]:
    """Inside, the peak of a simulated GPU counts from now; afterwards it is what it would have been. Yields bytes."""
    before, start_bytes = gpu.peak_bytes, gpu.allocated_bytes
    gpu.peak_bytes = start_bytes
    try:
        yield start_bytes
    finally:
        gpu.peak_bytes = max(gpu.peak_bytes, before)
