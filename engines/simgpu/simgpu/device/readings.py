"""Readings of the process's simulated GPUs, and settings that a program may change and restore.

These functions are the doors to memory, settings and queues: whoever stands outside needs nothing of the inside.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from simgpu.accounting import accounts
from simgpu.device import enabling, state
from simgpu.ground import device_kind
from simgpu.machine import gpus, hosts, rates

_Block: TypeAlias = tuple[accounts.Gpu, object]  # of `fresh_peak`: its GPU, and what tells it from others
_before: dict[_Block, int] = {}  # by block of `fresh_peak`: the peak before it, for which a block around it waits


class Memory:
    """The memory of one simulated GPU, in bytes of the storages that are alive; `simgpu.memory(device)` returns it."""

    def __init__(self, gpu: accounts.Gpu) -> None:
        self._gpu = gpu

    allocated_bytes = property(lambda self: self._gpu.allocated_bytes, doc="Bytes alive now.")
    peak_bytes = property(lambda self: self._gpu.peak_bytes, doc="The most bytes alive since the peak was last reset.")
    capacity_bytes = property(lambda self: self._gpu.capacity_bytes, doc="Bytes that may be alive.")

    def budget(self, nbytes: int) -> AbstractContextManager[None]:
        """Return a context in which at most `nbytes` more may be alive than at its start.

        Inside, messages of `torch.OutOfMemoryError` call that the capacity. Budgets may be nested, and end in any
        order: the tightest holds.
        """
        return self._gpu.budget(nbytes)

    @contextmanager
    def fresh_peak(self) -> Generator[Callable[[], int]]:
        """Inside, the peak counts from now; afterwards it is what it would have been.

        Yields a function that returns by how many bytes the peak rose since. Blocks may end in any order, as those of
        two generators do.
        """
        gpu, start_bytes = self._gpu, self._gpu.allocated_bytes
        block = (gpu, object())
        _before[block] = gpu.peak_bytes
        gpu.peak_bytes = start_bytes

        def later() -> list[_Block]:
            return [one for one in list(_before)[list(_before).index(block) + 1 :] if one[0] is gpu]

        try:
            yield lambda: max([gpu.peak_bytes, *(_before[one] for one in later())]) - start_bytes
        finally:
            after, before_bytes = later(), _before.pop(block)
            if after:
                _before[after[0]] = max(_before[after[0]], before_bytes)
            else:
                gpu.peak_bytes = max(gpu.peak_bytes, before_bytes)


def memory(device: torch.device | str | int | None = None) -> Memory:
    """Return the memory of a simulated GPU: of the current one, unless `device` is given.

    Raises RuntimeError where there is none, and `torch.AcceleratorError` for one that does not exist.
    """
    world = enabling.world()
    return Memory(world.memory.gpus[state.device_of(device)])


@dataclass(frozen=True)
class Settings:
    """Settings of the simulated GPUs of this process; equal ones need no `restore`.

    - `spec`, `host`, `costs`, `allocator`, `errors`: what `configure` sets;
    - `capacity_bytes`: the memory of each GPU; `context_bytes`: of that, what no tensor can have; `budgets`: those that
      are entered there, innermost last;
    - `streams`: the number of the current stream of each GPU.
    """

    spec: gpus.GPU
    host: hosts.Host
    costs: rates.Costs
    allocator: str
    errors: str
    capacity_bytes: tuple[int, ...]
    context_bytes: tuple[int, ...]
    budgets: tuple[tuple[tuple[int, int], ...], ...]
    streams: tuple[int, ...]


def settings() -> Settings:
    """Return how the simulated GPUs are set, for `restore`. Raises RuntimeError where they are not enabled."""
    world = enabling.world()
    return Settings(
        world.clock.machine.gpu,
        world.clock.machine.host,
        world.clock.machine.costs,
        "exact" if world.memory.gpus[0].cache is None else "caching",
        world.errors,
        tuple(gpu.capacity_bytes for gpu in world.memory.gpus),
        tuple(gpu.context_bytes for gpu in world.memory.gpus),
        tuple(tuple(gpu.budgets) for gpu in world.memory.gpus),
        tuple(world.clock.streams),
    )


def restore(before: Settings) -> None:
    """Set the simulated GPUs as they were when `settings()` returned `before`; tensors and clock stay as they are."""
    world = enabling.world()
    machine = replace(world.clock.machine, gpu=before.spec, host=before.host, costs=before.costs)
    world.clock.machine, world.clock.streams[:] = machine, before.streams
    enabling.configure(allocator=before.allocator, errors=before.errors)
    sizes = before.capacity_bytes, before.context_bytes, before.budgets
    for gpu, capacity_bytes, gpu.context_bytes, budgets in zip(world.memory.gpus, *sizes, strict=True):
        gpu.budgets[:] = budgets
        gpu.capacity_bytes = capacity_bytes  # the tightest limit holds again


def is_simulated(device: torch.device | str) -> bool:
    """Return whether `device` is a simulated GPU here: of the type `sim`, or `cuda` while `simgpu.cuda` is on.

    Not under `simgpu.mps` and `simgpu.xpu`: whoever asks this goes the way of the simulated GPU, and a program there is
    to go that of a real Mac's GPU, or Intel's.
    """
    chosen = torch.device(device).type
    return enabling.enabled() and (chosen == "sim" or chosen == device_kind.kind == "cuda")


def idle() -> bool:
    """Return whether all queues are empty: the host has waited until every GPU had done what it was given."""
    world = enabling.world()
    return max(world.clock.free_ns.values(), default=0) <= world.clock.host_ns


def forgive() -> None:
    """Forget that a kernel failed, and let the next calls succeed; what was written since the failure stays.

    A real GPU has no such way. `reset()` also goes out of an error, and makes unreadable what was written since.
    """
    enabling.world().clock.failure = None
