"""What is `torch.sim`? The functions of `torch.cuda`, answered by the simulated GPU."""

from __future__ import annotations

from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import torch

from course_utils.simulator import register, state
from course_utils.simulator.state import device_of

__all__ = ["make_module"]


class Stream:
    """A queue of one simulated GPU; what is queued on different streams may run at the same time."""

    def __init__(self, device=None, priority: int = 0) -> None:
        self.index = device_of(device)
        self.stream_id = next(state.world.stream_ids)
        self.device = state.sim_devices[self.index]

    def synchronize(self) -> None:
        world = state.world
        world.wait_until(world.queue_ns(self.index, self.stream_id), "stream.synchronize")

    def query(self) -> bool:
        return state.world.queue_ns(self.index, self.stream_id) <= state.world.host_ns

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event) -> None:
        event.wait(self)

    def wait_stream(self, stream) -> None:
        self.wait_event(stream.record_event())

    def __enter__(self):
        streams = state.world.streams
        self._before, streams[self.index] = streams[self.index], self.stream_id
        return self

    def __exit__(self, *error) -> None:
        state.world.streams[self.index] = self._before


class Event:
    """A mark in a queue; `elapsed_time` between two marks is in milliseconds of virtual time."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed, self._ns = enable_timing, None

    def record(self, stream=None) -> None:
        world = state.world
        index = world.current if stream is None else stream.index
        self._ns = world.queue_ns(index, world.streams[index] if stream is None else stream.stream_id)

    def query(self) -> bool:
        return self._ns is None or self._ns <= state.world.host_ns

    def synchronize(self) -> None:
        if self._ns is not None:
            state.world.wait_until(self._ns, "event.synchronize")

    def wait(self, stream=None) -> None:
        world = state.world
        index = world.current if stream is None else stream.index
        key = (index, world.streams[index] if stream is None else stream.stream_id)
        if self._ns is not None:
            with world.lock:
                world.free_ns[key] = max(world.free_ns.get(key, 0), self._ns)

    def elapsed_time(self, end_event: Event) -> float:
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._ns is None or end_event._ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end_event._ns - self._ns) / 1e6


class device:
    """Context in which `device="sim"` means the given GPU; a negative or absent index changes nothing."""

    def __init__(self, device) -> None:
        self._index = None if device is None or (isinstance(device, int) and device < 0) else device_of(device)

    def __enter__(self):
        self._before = state.world.current
        if self._index is not None:
            set_device(self._index)

    def __exit__(self, *error) -> None:
        set_device(self._before)


_mode: list[register.CurrentDevice] = []


def set_device(device) -> None:
    """Make GPU `device` the current one."""
    index = device_of(device)
    if _mode:
        _mode.pop().__exit__(None, None, None)
    if index:
        _mode.append(register.CurrentDevice(index))
        _mode[0].__enter__()
    state.world.current = index


def synchronize(device=None) -> None:
    """Wait until the GPU has done everything that was queued."""
    world = state.world
    world.wait_until(world.queue_ns(device_of(device)), "synchronize")


def _gpu(device=None):
    return state.world.gpus[device_of(device)]


def _reset_peak(device=None) -> None:
    _gpu(device).peak_bytes = _gpu(device).allocated_bytes


def _properties(device=None) -> SimpleNamespace:
    spec, gpu = state.world.spec, _gpu(device)
    major, minor = spec.compute_capability or (0, 0)
    name = f"Simulated {spec.name}"
    return SimpleNamespace(name=name, major=major, minor=minor, total_memory=gpu.capacity_bytes)


def _memory_stats(device=None) -> dict[str, int]:
    gpu = _gpu(device)
    return {
        "allocated_bytes.all.current": gpu.allocated_bytes,
        "allocated_bytes.all.peak": gpu.peak_bytes,
        "allocation.all.allocated": gpu.allocations,
    }


def _memory_summary(device=None, abbreviated: bool = False) -> str:
    gpu = _gpu(device)
    sizes = {"capacity": gpu.capacity_bytes, "allocated": gpu.allocated_bytes, "peak": gpu.peak_bytes}
    return "\n".join([f"memory of sim:{gpu.index}", *(f"  {name:9} {size:>15,} bytes" for name, size in sizes.items())])


def make_module() -> ModuleType:
    """Return the module that becomes `torch.sim`."""
    module = ModuleType("torch.sim", __doc__)
    allocated = lambda device=None: _gpu(device).allocated_bytes  # noqa: E731
    peak = lambda device=None: _gpu(device).peak_bytes  # noqa: E731
    vars(module).update(
        Stream=Stream, Event=Event, device=device, set_device=set_device, synchronize=synchronize,
        is_available=lambda: True, is_initialized=lambda: True, init=lambda: None, _lazy_init=lambda: None,
        device_count=lambda: len(state.world.gpus), current_device=lambda: state.world.current,
        get_device_name=lambda device=None: _properties(device).name,
        get_device_capability=lambda device=None: (_properties(device).major, _properties(device).minor),
        get_device_properties=_properties,
        current_stream=lambda device=None: _stream_of(device_of(device)), default_stream=_default_stream,
        stream=lambda stream: nullcontext() if stream is None else stream, set_stream=_set_stream,
        memory_allocated=allocated, max_memory_allocated=peak, memory_reserved=allocated, max_memory_reserved=peak,
        memory_stats=_memory_stats, reset_peak_memory_stats=_reset_peak, empty_cache=lambda: None,
        mem_get_info=lambda device=None: (
            max(_gpu(device).capacity_bytes - _gpu(device).allocated_bytes, 0), _gpu(device).capacity_bytes
        ),
        manual_seed=torch.manual_seed, manual_seed_all=lambda seed: None, seed=torch.seed,
        initial_seed=torch.initial_seed,
        get_rng_state=lambda device="sim": torch.get_rng_state(),
        set_rng_state=lambda new, device="sim": torch.set_rng_state(new),
        get_rng_state_all=lambda: [torch.get_rng_state()],
        set_rng_state_all=lambda states: torch.set_rng_state(states[0]),
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        is_bf16_supported=lambda including_emulation=True: (
            including_emulation or "bf16" in state.world.spec.peak_tflops
        ),
        OutOfMemoryError=torch.OutOfMemoryError, memory_summary=_memory_summary, seed_all=torch.seed,
        can_device_access_peer=lambda device, peer: device_of(device) != device_of(peer),
        is_current_stream_capturing=lambda: False, _is_in_bad_fork=lambda: state.forked,
    )  # fmt: skip
    return module


def _default_stream(device=None) -> Stream:
    stream = Stream(device)
    stream.stream_id = 0
    return stream


def _stream_of(index: int) -> Stream:
    stream = _default_stream(index)
    stream.stream_id = state.world.streams[index]
    return stream


def _set_stream(stream: Stream) -> None:
    state.world.streams[stream.index] = stream.stream_id
