"""Functions of an MPS build, under the Python code of `torch.mps` and `torch.backends.mps`.

Sources: MPSEvent.mm, MPSAllocator.mm and MPSGuardImpl.h of aten/src/ATen/mps.
"""

import functools
import itertools
import os
from typing import Any, NoReturn

import torch

from simgpu.device import cpu_fallback, mps, state, torch_sim
from simgpu.device.generators import DefaultGenerator
from simgpu.device.state import Device
from simgpu.device.tensor import SimTensor
from simgpu.face import accelerator
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH

WATERMARK = 1.7  # PYTORCH_MPS_HIGH_WATERMARK_RATIO: so many times what Metal recommends may be allocated
_CORES = 10
_MAC_OS = 15  # of which version it says it is
_NO_STATISTICS = "Allocator for mps is not a DeviceAllocator."
_HANGS = (
    "On a real Mac this line may wait for ever, with PyTorch up to 2.14: elapsed_time() waits for a signal of the end "
    "event that {}. Wait for the device with torch.mps.synchronize() instead, and ask once for each record() "
    "(https://github.com/pytorch/pytorch/issues/162872)."
)


class Stream(torch_sim.Stream):
    """The one stream of MPS, which each new one is."""

    def __init__(self, device: Device = None, priority: int = 0, *, stream_id: int | None = None) -> None:
        super().__init__(0, stream_id=0)

    def record_event(self, event: torch_sim.Event | None = None) -> torch_sim.Event:
        return super().record_event(Event() if event is None else event)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash(Stream)

    def __repr__(self) -> str:
        return "torch.Stream device_type=mps, device_index=0, stream_id=0"


class Event(torch_sim.Event):
    """An event of MPS, with the one signal that C++ keeps of its completion: the first to wait takes it."""

    _orders = itertools.count(1)

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        super().__init__(enable_timing)
        self.order = 0  # of its record among all; 0: there was none
        self._is_signalled = False
        self._why = "was never recorded"

    def record(self, stream: torch_sim.Stream | None = None) -> None:
        super().record(stream)
        self.order, self._is_signalled = next(self._orders), self._timed
        self._why = "was made without enable_timing=True"

    def synchronize(self) -> None:
        if self.order and not self.query():
            super().synchronize()
            self._is_signalled, self._why = False, "its synchronize() has taken"

    def elapsed_time(self, end_event: torch_sim.Event) -> float:
        if isinstance(end_event, Event) and self._timed and end_event._timed and self.order and end_event.order:
            end_event.take_signal()
        return super().elapsed_time(end_event)  # which refuses the others

    def take_signal(self) -> None:
        """Wait for the device and take the signal; RuntimeError stands for a wait that does not end."""
        TORCH.sim.synchronize()
        if not self._is_signalled:
            raise RuntimeError(_HANGS.format(self._why))
        self._is_signalled, self._why = False, "an earlier elapsed_time() has taken"


class Events:
    """The events that a program has, by the numbers by which `torch.mps.Event` asks for them."""

    def __init__(self) -> None:
        self._known: dict[int, Event] = {}
        self._numbers = itertools.count(1)

    def functions(self) -> dict[str, Any]:
        """Return stand-ins for the functions of C++."""
        known = self._known
        return {
            "_mps_acquireEvent": self._acquire,
            "_mps_releaseEvent": lambda number: known.pop(number, None) and None,
            "_mps_recordEvent": lambda number: known[number].record(),
            "_mps_waitForEvent": lambda number: known[number].wait(),
            "_mps_queryEvent": lambda number: bool(known[number].order) and known[number].query(),
            "_mps_synchronizeEvent": lambda number: known[number].synchronize(),
            "_mps_elapsedTimeOfEvents": self._elapsed_ms,
        }

    def _acquire(self, timed: bool) -> int:
        number = next(self._numbers)
        self._known[number] = Event(timed)
        return number

    def _elapsed_ms(self, first: int, last: int) -> float:
        """Return the time between two events, or raise RuntimeError in the words of MPS."""
        start, end = self._known[first], self._known[last]
        end.take_signal()
        if not (start.order and start._timed):
            raise RuntimeError("Events were not created with argument 'enable_timing=True'")
        if end.order < start.order:
            raise RuntimeError(f"End event {last} was not recorded after start event {first}")
        return torch_sim.Event.elapsed_time(start, end)


class Memory:
    """Memory limit of the GPU: a share of Metal's recommendation, set by `set_per_process_memory_fraction`."""

    def __init__(self, recommended_bytes: int) -> None:
        self.recommended_bytes = recommended_bytes

    def set_fraction(self, fraction: float) -> None:
        """Limit allocation to this share of the recommended bytes; 0 is no limit."""
        gpu = state.world.memory.gpus[0]
        gpu.capacity_bytes = round(fraction * self.recommended_bytes) if fraction else 2**62


def replace(put: Replacements) -> None:
    """Patch `torch.mps`, and whatever asks whether there is MPS, to answer for one simulated GPU."""
    gpu = state.world.memory.gpus[0]
    generator, memory = DefaultGenerator(0), Memory(int(gpu.capacity_bytes / WATERMARK))
    wished = os.environ.get("PYTORCH_MPS_HIGH_WATERMARK_RATIO")
    if wished is not None:
        memory.set_fraction(float(wished))
    put.put(
        torch._C, **Events().functions(), _has_mps=True, _mps_is_available=lambda: True,
        _mps_is_on_macos_or_newer=lambda major, minor: (major, minor) <= (_MAC_OS, 0),
        _mps_get_name=lambda: f"Simulated {state.world.clock.machine.gpu.name}", _mps_get_core_count=lambda: _CORES,
        _mps_is_in_bad_fork=lambda: state.forked, _mps_get_default_generator=lambda: generator,
        _mps_deviceSynchronize=lambda: TORCH.sim.synchronize(), _mps_emptyCache=lambda: TORCH.sim.empty_cache(),
        _mps_setMemoryFraction=memory.set_fraction, _mps_currentAllocatedMemory=lambda: gpu.allocated_bytes,
        _mps_driverAllocatedMemory=lambda: TORCH.sim.memory_reserved(0),
        _mps_recommendedMaxMemory=lambda: memory.recommended_bytes,
        _mps_maxBufferLength=lambda: memory.recommended_bytes,
        _mps_profilerStartTrace=lambda mode="interval", wait_until_completed=False: None,
        _mps_profilerStopTrace=lambda: None, _mps_compileShader=_no_metal, _mps_loadMetalllib=_no_metal,
        _mps_loadMetallibFromPath=_no_metal, _mps_isCaptureEnabled=lambda: False, _mps_isCapturing=lambda: False,
    )  # fmt: skip
    available = functools.cache(lambda: True)  # where a real one is hidden, these say that there is none
    for module in (torch.mps, torch.backends.mps):
        put.put(module, is_available=available)
    put.put(torch.mps, _default_mps_generator=generator, _is_in_bad_fork=lambda: state.forked)
    if hasattr(torch.mps, "current_stream"):  # since 2.15; here there is one
        put.put(torch.mps, **dict.fromkeys(("current_stream", "default_stream"), functools.cache(Stream)))
    for name in ("is_available", "is_macos_or_newer", "is_macos13_or_newer", "get_name", "get_core_count"):
        put.forget(getattr(torch.backends.mps, name))
    accelerator.replace(put, Stream, Event, {}, accelerator.FORMATS)
    named = [name for name, value in vars(torch.accelerator).items() if "memory_" in name and callable(value)]
    put.put(torch.accelerator, **dict.fromkeys([*named, "get_memory_info", "empty_cache"], _no_statistics))
    put.put(torch.accelerator, current_stream=lambda device=None: Stream(), set_stream=lambda stream: None)
    put.put(SimTensor, share_memory_=_share)
    library = torch.library.Library("aten", "IMPL")
    library.impl("linear", mps.linear, "AutogradMeta")
    cpu_fallback.register(library)
    put.call(library._destroy)


def _no_statistics(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(_NO_STATISTICS)


def _no_metal(source: object) -> NoReturn:
    raise NotImplementedError("the simulated GPU runs no kernels in Metal: run this line on a Mac, or leave it out")


def _share(self: SimTensor) -> NoReturn:
    raise RuntimeError("_share_filename_: only available on CPU")
