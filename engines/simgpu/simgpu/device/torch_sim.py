"""Module `torch.sim`: the functions of `torch.cuda`, answered by the simulated GPU."""

import functools
import pickle
import sys
import threading
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from simgpu.accounting.accounts import Gpu
from simgpu.accounting.allocator import Allocator
from simgpu.clock.capture import CAPTURED_EVENT, CAPTURING, Mark, fail
from simgpu.device import communication, dispatcher, state
from simgpu.device.state import Device, device_of
from simgpu.ground import device_kind
from simgpu.ground.torch_internals import TORCH

_KIND = int(TORCH._C._autograd.DeviceType.PrivateUse1)  # as C++ numbers kinds of devices


class Stream:
    """A queue of one simulated GPU; what is queued on different streams may run at the same time."""

    def __init__(self, device: Device = None, priority: int = 0, *, stream_id: int | None = None) -> None:
        self.index = device_of(device)
        self.stream_id = next(state.world.clock.stream_ids) if stream_id is None else stream_id
        self.device, self.device_index, self.device_type = state.world.devices[self.index], self.index, _KIND

    def synchronize(self) -> None:
        world = state.world
        if world.clock.races is not None:
            world.clock.races.host_waits([(self.index, self.stream_id)])
        world.clock.wait_until(world.clock.queue_ns(self.index, self.stream_id), "stream.synchronize")

    def query(self) -> bool:
        clock = state.world.clock
        if clock.capture is not None and clock.capture.mark((self.index, self.stream_id)) is not None:
            clock.capture.fail(CAPTURING)
        clock.report(clock.host_ns)
        done = clock.queue_ns(self.index, self.stream_id) <= clock.host_ns
        if done and clock.races is not None:
            clock.races.host_waits([(self.index, self.stream_id)])
        return done

    def is_capturing(self) -> bool:
        capture = state.world.clock.capture
        return capture is not None and capture.mark((self.index, self.stream_id)) is not None

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_event(stream.record_event())

    def __enter__(self) -> "Stream":
        streams = state.world.clock.streams
        self._before, streams[self.index] = streams[self.index], self.stream_id
        return self

    def __exit__(self, *error: object) -> None:
        state.world.clock.streams[self.index] = self._before


class Event:
    """A mark in a queue; `elapsed_time` between two marks is in milliseconds of virtual time."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed, self._external = enable_timing, False  # whether each replay of a graph records it anew
        self.index: int | None = None  # of the GPU on which it was recorded
        self._ns: int | None = None
        self._mark: Mark | None = None  # where it stands in the capture of a graph
        self._known: Any = None  # by whom it is waited for: what the stream knew, where races are looked for

    def record(self, stream: Stream | None = None) -> None:
        stream = _current_stream() if stream is None else stream
        clock = state.world.clock
        self._ns, self.index = clock.queue_ns(stream.index, stream.stream_id), stream.index
        self._mark = None if clock.capture is None else clock.capture.mark((stream.index, stream.stream_id))
        if self._external and clock.capture is not None and self._mark is not None:
            clock.capture.external.append((len(clock.capture.work), self))
            self._mark = None
        self._known = None if clock.races is None else clock.races.state_of((stream.index, stream.stream_id))

    device = property(
        lambda self: torch.device(device_kind.kind) if self.index is None else state.world.devices[self.index]
    )
    event_id = property(lambda self: 0 if self.index is None else id(self))

    def __repr__(self) -> str:
        where = f"device_type={device_kind.kind}, device_index={-1 if self.index is None else self.index}"
        return f"torch.Event {where}, event_flag={int(self._timed)}, event_id={self.event_id}"

    def _refuse_captured(self) -> None:
        if self._mark is not None:
            fail(CAPTURED_EVENT)

    def query(self) -> bool:
        self._refuse_captured()
        clock = state.world.clock
        if clock.capture is not None and clock.capture.mode != "relaxed" and clock.capture.binds():
            clock.capture.fail(CAPTURING)
        clock.report(clock.host_ns)
        done = self._ns is None or self._ns <= clock.host_ns
        if done and self._known is not None and clock.races is not None:
            clock.races.host_knows(self._known)
        return done

    def synchronize(self) -> None:
        self._refuse_captured()
        if self._ns is not None:
            if self._known is not None and state.world.clock.races is not None:
                state.world.clock.races.host_knows(self._known)
            state.world.clock.wait_until(self._ns, "event.synchronize")

    def wait(self, stream: Stream | None = None) -> None:
        stream = _current_stream() if stream is None else stream
        capture = state.world.clock.capture
        if self._ns is not None and capture is not None:
            capture.wait((stream.index, stream.stream_id), self._mark)
        elif self._ns is not None:
            self._refuse_captured()
            state.world.clock.hold((stream.index, stream.stream_id), self._ns)
            if self._known is not None and state.world.clock.races is not None:
                state.world.clock.races.order((stream.index, stream.stream_id), self._known)

    def elapsed_time(self, end_event: "Event") -> float:
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._ns is None or end_event._ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self._refuse_captured()
        end_event._refuse_captured()
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end_event._ns - self._ns) / 1e6


class device:
    """Context in which `device="sim"` means the given GPU; a negative or absent index changes nothing."""

    def __init__(self, device: Device) -> None:
        self._index = None if device is None or (isinstance(device, int) and device < 0) else device_of(device)

    def __enter__(self) -> None:
        self._before = state.world.current
        if self._index is not None:
            set_device(self._index)

    def __exit__(self, *error: object) -> None:
        set_device(self._before)


class _Modes(threading.local):
    """Of this thread: the mode that gives `device="sim"` the index of the current GPU where that is not 0."""

    mode: dispatcher.CurrentDevice | None = None


_modes = _Modes()


def set_device(device: Device) -> None:
    """Make GPU `device` the current one."""
    index = device_of(device)
    if _modes.mode is not None:
        _modes.mode.__exit__(None, None, None)
    _modes.mode = dispatcher.CurrentDevice(index) if index else None
    if _modes.mode is not None:
        _modes.mode.__enter__()
    state.world.current = index


def synchronize(device: Device = None) -> None:
    """Wait until the GPU has done everything that was queued."""
    world = state.world
    communication.finish()
    if world.clock.races is not None:
        world.clock.races.host_waits(world.clock.races.streams_of(device_of(device)))
    world.clock.wait_until(world.clock.queue_ns(device_of(device)), "synchronize")


def _gpu(device: Device = None) -> Gpu:
    return state.world.memory.gpus[device_of(device)]


def _cache(device: Device = None) -> Allocator:
    """Return the caching allocator of a GPU. Raises RuntimeError where it is not on."""
    cache = _gpu(device).cache
    if cache is None:
        raise RuntimeError("the simulated GPU has no such account: simgpu.configure(allocator='caching') makes one")
    return cache


def _caches() -> list[Allocator]:
    return [gpu.cache for gpu in state.world.memory.gpus if gpu.cache is not None]


def _reset_peak(device: Device = None) -> None:
    gpu = _gpu(device)
    gpu.peak_bytes, gpu.most_storages = gpu.allocated_bytes, gpu.storages
    if gpu.cache is not None:
        gpu.cache.reset(peaks=True)


def _memory_reserved(device: Device = None) -> int:
    gpu = _gpu(device)
    return gpu.allocated_bytes if gpu.cache is None else gpu.cache.reserved_bytes


def _max_memory_reserved(device: Device = None) -> int:
    gpu = _gpu(device)
    return gpu.peak_bytes if gpu.cache is None else gpu.cache.peak_reserved_bytes


def _empty_cache() -> None:
    state.world.memory.settle()
    if state.world.clock.capture is not None:
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED, please report a bug to PyTorch.")
    for cache in _caches():
        cache.empty_cache()


def _set_fraction(fraction: float, device: Device = None) -> None:
    """Limit reserved memory to this share of the capacity, as `torch.cuda.set_per_process_memory_fraction` does."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _cache(device).fraction = fraction


def fraction(device: Device = None) -> float:
    """Return the share of the capacity that PyTorch may reserve."""
    share = _cache(device).fraction
    return 1.0 if share is None else share


def _record_history(
    enabled: str | None = "all", context: str | None = "all", stacks: str = "all", max_entries: int = sys.maxsize,
    device: Device = None, clear_history: bool = False,
) -> None:  # fmt: skip
    """Keep what the allocator does for `_snapshot`; the stacks are those of Python. `enabled=None` ends it."""
    for cache in [_cache(device)] if device is not None else _caches() or [_cache()]:
        if clear_history:
            cache.history = None
        cache.record(enabled, context is not None, max_entries)


def _memory_snapshot() -> list[dict[str, Any]]:
    state.world.memory.settle()
    _cache()
    return [segment for cache in _caches() for segment in cache.segments()]


def _snapshot(device: Device = None) -> dict[str, Any]:
    """Return segments, blocks and history as `torch.cuda.memory._snapshot` does, for PyTorch's viewer."""
    segments = _memory_snapshot()
    return {
        "segments": segments,
        "device_traces": [list(cache.history or ()) for cache in _caches()],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": torch._C._accelerator_getAllocatorSettings()},
        "external_annotations": [],
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Write `_snapshot()` to a file for https://pytorch.org/memory_viz."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def _properties(device: Device = None) -> SimpleNamespace:
    spec, gpu = state.world.clock.machine.gpu, _gpu(device)
    major, minor = spec.compute_capability or (0, 0)
    name = f"Simulated {spec.name}"
    return SimpleNamespace(name=name, major=major, minor=minor, total_memory=gpu.capacity_bytes)


def _mem_get_info(device: Device = None) -> tuple[int, int]:
    gpu = _gpu(device)
    return max(gpu.room_bytes - _memory_reserved(device), 0), gpu.capacity_bytes


def _memory_stats(device: Device = None) -> dict[str, int]:
    gpu = _gpu(device)
    if gpu.cache is not None:
        state.world.memory.settle()
        return gpu.cache.memory_stats()
    return {
        "allocated_bytes.all.current": gpu.allocated_bytes,
        "allocated_bytes.all.peak": gpu.peak_bytes,
        "allocation.all.allocated": gpu.allocations,
    }


def _memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    gpu = _gpu(device)
    sizes = {"capacity": gpu.capacity_bytes, "allocated": gpu.allocated_bytes, "peak": gpu.peak_bytes}
    if gpu.cache is not None:
        sizes["reserved"] = gpu.cache.reserved_bytes
    return "\n".join([f"memory of sim:{gpu.index}", *(f"  {name:9} {size:>15,} bytes" for name, size in sizes.items())])


_MEMORY = {
    "memory_allocated": lambda device=None: _gpu(device).allocated_bytes,
    "max_memory_allocated": lambda device=None: _gpu(device).peak_bytes,
    "memory_reserved": _memory_reserved, "max_memory_reserved": _max_memory_reserved,
    "memory_stats": _memory_stats, "memory_summary": _memory_summary, "memory_snapshot": _memory_snapshot,
    "reset_peak_memory_stats": _reset_peak,
    "reset_accumulated_memory_stats": lambda device=None: _cache(device).reset(peaks=False),
    "empty_cache": _empty_cache, "mem_get_info": _mem_get_info, "set_per_process_memory_fraction": _set_fraction,
    "_record_memory_history": _record_history, "_snapshot": _snapshot, "_dump_snapshot": _dump_snapshot,
}  # fmt: skip


@functools.cache
def make_module() -> ModuleType:
    """Return the module that becomes `torch.sim`."""
    module = ModuleType("torch.sim", __doc__)
    vars(module).update(
        Stream=Stream, Event=Event, device=device, set_device=set_device, synchronize=synchronize,
        is_available=state.is_on, is_initialized=lambda: True, init=lambda: None, _lazy_init=lambda: None,
        device_count=lambda: len(state.world.memory.gpus) if state.is_on() else 0,
        current_device=lambda: state.world.current,
        get_device_name=lambda device=None: _properties(device).name,
        get_device_capability=lambda device=None: (_properties(device).major, _properties(device).minor),
        get_device_properties=_properties,
        current_stream=_current_stream, default_stream=lambda device=None: Stream(device, stream_id=0),
        stream=lambda stream: nullcontext() if stream is None else stream, set_stream=_set_stream,
        **_MEMORY, memory=SimpleNamespace(**_MEMORY),
        manual_seed=torch.manual_seed, manual_seed_all=lambda seed: None, seed=torch.seed,
        initial_seed=torch.initial_seed,
        get_rng_state=lambda device="sim": torch.get_rng_state(),
        set_rng_state=lambda new, device="sim": torch.set_rng_state(new),
        get_rng_state_all=lambda: [torch.get_rng_state()],
        set_rng_state_all=lambda states: torch.set_rng_state(states[0]),
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        is_bf16_supported=lambda including_emulation=True: (
            including_emulation or "bf16" in state.world.clock.machine.gpu.peak_tflops),
        OutOfMemoryError=torch.OutOfMemoryError, seed_all=torch.seed,
        can_device_access_peer=lambda device, peer: device_of(device) != device_of(peer),
        is_current_stream_capturing=lambda: False, _is_in_bad_fork=lambda: state.forked,
    )  # fmt: skip
    return module


def _current_stream(device: Device = None) -> Stream:
    return Stream(device, stream_id=state.world.clock.streams[device_of(device)])


def _set_stream(stream: Stream) -> None:
    state.world.clock.streams[stream.index] = stream.stream_id
