"""State of the process's simulated GPUs: memory, clock, journal, and the current device."""

import math
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch

from simgpu.accounting.accounts import Accounts
from simgpu.clock.clock import Clock
from simgpu.clock.journal import Journal
from simgpu.ground import device_kind
from simgpu.ground.replacements import Replacements
from simgpu.machine.machines import Machine

Device: TypeAlias = torch.device | str | int | None  # how programs name a GPU; no index means the current one


class _Here(threading.local):
    current = 0


class World:
    """All simulated GPUs of the process: one memory account, one virtual clock and one journal, under one lock."""

    def __init__(self, count: int, machine: Machine, capacity_bytes: int) -> None:
        self.lock = threading.RLock()
        self.memory = Accounts(count, capacity_bytes, self.lock)
        self.journal = Journal()
        self.clock = Clock(count, machine, self.journal, self.lock)
        self.memory.stream = lambda index: self.clock.streams[index]
        self.chosen: dict[str, Any] | None = None  # `spec`, `capacity` and `host` of `enable`; None where it is off
        self.errors = "immediate"
        self.only_shapes = False  # whether values are left uncomputed (`shapes_only`)
        self.on_upload: Callable[[torch.Tensor], None] | None = None  # called with each host tensor copied to a GPU
        # called when an operator needs a value from the GPU ("size") or takes CPU indices ("index")
        self.on_host_dependency: Callable[[str], None] | None = None
        self.on_recorded: Callable[[], None] | None = None  # called when a CUDA graph is recorded for another size
        # by storage whose views autograd would make anew in another shape: its reference, and whether gradients flow
        self.stale: dict[int, tuple[weakref.ref[torch.UntypedStorage], bool]] = {}
        self._here = _Here()
        self.meta_devices = [torch.device("meta", index) for index in range(count)]  # what C++ sees
        self.devices: list[torch.device] = []  # what Python sees, once the type is registered

    def _set_current(self, index: int) -> None:
        self._here.current = index

    current = property(lambda self: self._here.current, _set_current, doc="The current GPU of this thread.")

    def show(self, kind: device_kind.Kind) -> None:
        """Show the GPUs to Python as devices of a kind, or all of them as one device."""
        device_kind.show(kind)
        self.devices = [torch.device(kind.name, 0 if kind.is_single else one.index) for one in self.meta_devices]

    def restart(self) -> None:
        """Set the clock to zero, empty the queues and let every peak start from the bytes that are alive now."""
        with self.lock:
            self.clock.settle(math.inf)
            self._spoil_what_came_after_a_failure()
            self.clock.restart()
            self.memory.restart()

    def fail(self, index: int) -> None:
        """Queue the failure of a kernel on GPU `index`; raises at once where launches are blocking."""
        with self.lock:
            self.clock.fail(index, dict(self.memory.live))
            if self.errors == "blocking":
                self.clock.report(math.inf)

    def _spoil_what_came_after_a_failure(self) -> None:
        """Spoil all memory written since a kernel failed: every byte 255, which is nan, or -1."""
        failure, self.clock.failure = self.clock.failure, None
        if failure is None:
            return
        for key, ref in list(self.memory.live.items()):
            storage = ref()
            if storage is not None and failure.sound.get(key) is not ref:
                storage.fill_(255)


world: World = cast("World", None)  # set by simgpu.enable, before anything asks for it
replaced = Replacements()  # what `simgpu.disable` puts back
forked = False  # set in a forked child that cannot use the GPUs
last_error = ""  # message of the last failing operator; TorchScript drops it


def is_on() -> bool:
    """Return whether the device type `sim` is enabled."""
    return world is not None and world.chosen is not None


def _always() -> bool:
    return True


begun: Callable[[], bool] = _always  # whether the GPUs are in use, so that a child that is forked cannot use them


def note_fork() -> None:
    """Remember, in a child that was just forked, whether it can use the GPUs."""
    global forked
    forked = forked or begun()


def device_of(device: Device) -> int:
    """Return the index of a simulated GPU; no index means the current one. Raises as PyTorch does if there is none."""
    if device is None or isinstance(device, int):
        index = device
    else:
        device = device if type(device) is torch.device else torch.device(device)
        index = device.index
        if device.type not in ("sim", "meta", device_kind.kind):
            raise ValueError(f"Expected a {device_kind.kind} device, but got: {device}")
    if index is None:
        return world.current
    if device_kind.current.is_single:
        return 0
    if not 0 <= index < len(world.memory.gpus) and device_kind.kind == "xpu":
        count = len(world.memory.gpus)
        raise RuntimeError(f"The device index is out of range. It must be in [0, {count}), but got {index}.")
    if not 0 <= index < len(world.memory.gpus):
        raise torch.AcceleratorError(
            f"{device_kind.title()} error: invalid device ordinal\nGPU device may be out of range, do you have enough "
            f"GPUs? This machine simulates {len(world.memory.gpus)}: {world.devices[0]} to {world.devices[-1]}."
        )
    return index
