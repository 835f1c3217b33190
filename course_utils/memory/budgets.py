"""Limit on the bytes that a block may have alive."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch

import simgpu
from course_utils import arguments, plots
from course_utils.devices import resolve
from simgpu.accounting.ledger import Ledger


class Budget:
    """What a budget allows, and the most that was used of it; bytes are counted from the start of the block."""

    def __init__(self, limit_bytes: int, device: torch.device) -> None:
        self.limit_bytes, self.device = limit_bytes, device
        self._rise: Callable[[], int] = int

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once so far, beyond those that were alive at the start."""
        return max(self._rise(), 0)

    def __str__(self) -> str:
        limit, peak = plots.bytes_text(self.limit_bytes), plots.bytes_text(self.peak_bytes)
        return f"budget of {limit} on {self.device}: at most {peak} used ({self.peak_bytes / self.limit_bytes:.0%})"

    __repr__ = __str__


class Limited(Ledger):
    """A ledger that raises at the operation that goes over."""

    places = False

    def __init__(self, device: torch.device, limit_bytes: int) -> None:
        super().__init__(device)
        self.limit_bytes = limit_bytes

    def note(self, func, made_bytes):
        if self.change_bytes > self.limit_bytes and made_bytes:
            kind, index = self.device.type, self.device.index
            kind, where = "CUDA" if kind == "cuda" else kind, "The budget" if index is None else f"GPU {index}"
            alive_bytes = self.change_bytes - made_bytes
            raise simgpu.out_of_memory(kind, where, made_bytes, self.limit_bytes, alive_bytes)
        self.peak_bytes = max(self.peak_bytes, self.change_bytes)


@contextmanager
def budget(size: str | int, device: torch.device | str | None = None) -> Iterator[Budget]:
    """Limit the block to `size` ("64 MiB" or bytes) alive on the device beyond what was alive at its start.

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
    result = Budget(arguments.size_bytes("size", size), resolve(device))
    gc.collect()
    with ExitStack() as stack:
        if result.device.type == "sim":
            for index in range(torch.get_device_module("sim").device_count()):
                stack.enter_context(simgpu.memory(index).budget(result.limit_bytes))
            result._rise = stack.enter_context(simgpu.memory(result.device).fresh_peak())
        else:
            ledger = stack.enter_context(Limited(result.device, result.limit_bytes))
            result._rise = lambda: ledger.peak_bytes
        try:
            yield result
        finally:
            last_bytes = result.peak_bytes
            result._rise = lambda: last_bytes
