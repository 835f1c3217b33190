"""Driver functions of a CUDA build, under the Python code of `torch.cuda`.

A CUDA build of PyTorch has functions such as `torch._C._cuda_getDeviceCount`, and `torch.cuda` is written on top of
them. `replace` puts such functions there, answered by the simulated GPUs. What has no answer raises
NotImplementedError.
"""

import functools
import math
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from simgpu.device import enabling, state, torch_sim
from simgpu.device.generators import DefaultGenerator
from simgpu.device.state import Device
from simgpu.face import accelerator, nccl, properties, statistics
from simgpu.face.beginning import Beginning
from simgpu.face.tensors import OLD_TYPES
from simgpu.ground import device_kind
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH
from simgpu.machine.prices import Cost

VISIBLE = "SIMGPU_VISIBLE"  # what CUDA_VISIBLE_DEVICES was when the face was switched on, for child processes
VERSION = "12.8"  # of CUDA, as a program is told that asks
_CUDNN = 91002  # 9.10.2
_PRIORITIES = 4  # of streams, by PyTorch's own limit; CUDA has more
_SPIN_MHZ = 1500  # the clock that `torch.cuda._sleep` counts: no data sheet of the table says one; an A100 has 1410
_CUDA = 1  # as C++ numbers kinds of devices
_FAILURE = "the simulated GPU does not have it: run this line on a real GPU, or leave it out here"


class OfKind(torch_sim.Stream):
    """A queue of one simulated GPU, as `torch.cuda.Stream` and `torch.xpu.Stream`."""

    kind_number = _CUDA

    def __init__(
        self, device: Device = None, priority: int = 0, *, stream_id: int | None = None,
        device_index: int | None = None, device_type: int | None = None,
    ) -> None:  # fmt: skip
        getattr(TORCH, device_kind.kind)._lazy_init()
        index = device if device_index is None else device_index
        super().__init__(None if isinstance(index, int) and index < 0 else index, priority, stream_id=stream_id)
        self.device_type, self.priority = self.kind_number, priority

    def record_event(self, event: torch_sim.Event | None = None) -> torch_sim.Event:
        return super().record_event(getattr(torch, device_kind.kind).Event() if event is None else event)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfKind) and (self.index, self.stream_id) == (other.index, other.stream_id)

    def __hash__(self) -> int:
        return hash((self.index, self.stream_id))


class Stream(OfKind):
    """A queue of one simulated GPU, as `torch.cuda.Stream`."""

    cuda_stream = property(lambda self: self.stream_id, doc="Stands for the handle that libraries are given.")

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority; the clock ignores both."""
        return 0, 1 - _PRIORITIES

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event(torch_sim.Event):
    """A mark in a queue, as `torch.cuda.Event`; times are those of the virtual clock."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        super().__init__(enable_timing, blocking, interprocess)
        self._external = external

    device = property(lambda self: None if self.index is None else state.world.devices[self.index])
    cuda_event = property(lambda self: 0 if self.index is None else id(self))

    def __repr__(self) -> str:
        return "<torch.cuda.Event uninitialized>" if self._ns is None else f"<torch.cuda.Event {self._ns / 1e6:.3f} ms>"


def replace(put: Replacements) -> None:
    """Patch `torch.cuda`, and whatever asks whether there is CUDA, to answer for the simulated GPUs."""
    count = len(state.world.memory.gpus)
    before = os.environ.get(VISIBLE, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    begun = Beginning(put, torch.cuda)
    seen = _Count(count, before, begun)
    put.put_item(os.environ, VISIBLE, before)
    put.put(torch._C, **{name: functools.partial(refuse, name) for name in _REFUSED.split()})
    put.put(torch._C, **_functions(seen.of_the_driver), **_memory_functions())
    memory = {name: getattr(TORCH.sim, name) for name in _MEMORY.split()}
    memory |= {name: over_blocks(getattr(TORCH.sim, name)) for name in _BLOCKS.split()}
    memory |= {"_record_memory_history": _record_history}
    for owner in (torch.cuda, torch.cuda.memory):
        put.put(owner, **memory)
    for owner in (torch.cuda, torch.cuda.streams):
        put.put(owner, Stream=Stream, Event=Event)
    put.put(
        torch.cuda, device_count=seen, _is_in_bad_fork=lambda: state.forked,
        default_generators=tuple(map(DefaultGenerator, range(count))), _get_device_properties=properties.of,
        _cudart=_RUNTIME,
        _exchange_device=exchange, _maybe_exchange_device=accelerator.another(exchange), has_magma=True, **OLD_TYPES,
        MemPool=_Refused, ExternalStream=functools.partial(refuse, "ExternalStream"), _cached_device_count=None,
    )  # fmt: skip
    put.put(torch.cuda.random, device_count=seen)
    put.put(torch.cuda.nvtx, _nvtx=_RANGES)
    cudnn = TORCH.backends.cudnn.m
    put.put(cudnn, is_available=lambda: True, version=lambda: _CUDNN, is_acceptable=lambda tensor: False)
    put.put(torch.backends.cuda, is_built=lambda: True)
    put.put(torch.version, cuda=VERSION)
    same = ("current_stream", "set_stream", "memory_stats", "reset_accumulated_memory_stats")
    accelerator.replace(
        put, Stream, torch_sim.Event, {"set_device_index": "set_device", **dict(zip(same, same, strict=True))}
    )
    put.put(torch.accelerator, device_index=torch.cuda.device)


def over_blocks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `torch.cuda` that is about the allocator's blocks: from its first call on there are some."""

    @functools.wraps(function)
    def over_blocks(*args: Any, **kwargs: Any) -> Any:
        enabling.configure(allocator="caching")
        return function(*args, **kwargs)

    return over_blocks


@over_blocks
def _record_history(enabled: str | bool | None = "all", *args: Any, **kwargs: Any) -> None:
    """Record the allocator's history; also with PyTorch 2.0's arguments, whose first one is a truth value."""
    if not isinstance(enabled, bool):
        return TORCH.sim._record_memory_history(enabled, *args, **kwargs)
    names = ("record_context", "trace_alloc_max_entries", "trace_alloc_record_context", "device")
    old = dict(zip(names, args, strict=False)) | kwargs
    return TORCH.sim._record_memory_history(
        "all" if enabled else None, "all" if old.get("record_context", True) else None,
        max_entries=old.get("trace_alloc_max_entries", 1), device=old.get("device"),
        clear_history=old.get("clear_history", False),
    )  # fmt: skip


def refuse(name: str, *args: Any, **kwargs: Any) -> None:
    raise NotImplementedError(f"{name.removeprefix('_cuda_')} of CUDA was asked for: {_FAILURE}")


class _Refused:
    """`torch.cuda.MemPool`, which programs also ask whether something is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse("MemPool")


class _Count:
    """Return the number of visible GPUs, frozen once CUDA is initialised, as in real CUDA."""

    def __init__(self, count: int, before: str, begun: Beginning) -> None:
        self._count, self._before, self._begun = count, before, begun
        self._told: int | None = None

    def __call__(self) -> int:
        if self._told is not None:
            return self._told
        count = self._visible()
        if self._begun:
            self._told = count
        return count

    def of_the_driver(self) -> int:
        """Answer as the driver does, whom `torch.cuda.is_available()` asks."""
        self._begun.ask()
        return self()

    def _visible(self) -> int:
        """Return how many there are by CUDA_VISIBLE_DEVICES, where a program has set it."""
        if os.environ.get("CUDA_VISIBLE_DEVICES", "") == self._before:
            return self._count
        parsed = torch.cuda._parse_visible_devices()
        return sum(1 for index in parsed if isinstance(index, int) and index < self._count)


def _functions(count: Callable[[], int]) -> dict[str, Callable[..., Any]]:
    """Return stand-ins for devices, streams and settings of a CUDA build with `count()` GPUs."""
    settings = {"benchmark_limit": 10}  # which changes nothing: no kernels are tried here
    return {
        "_cuda_init": lambda: None,
        "_cuda_getDeviceCount": count,
        "_cuda_getDevice": lambda: state.world.current,
        "_cuda_setDevice": exchange,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_synchronize": lambda: TORCH.sim.synchronize(),
        "_cuda_getCurrentStream": lambda index: (state.world.clock.streams[index], index, _CUDA),
        "_cuda_getCurrentRawStream": lambda index: state.world.clock.streams[index],
        "_cuda_getDefaultStream": lambda index: (0, index, _CUDA),
        "_cuda_setStream": set_stream,
        "_cuda_getArchFlags": lambda: "sm_{}{}".format(*(state.world.clock.machine.gpu.compute_capability or (0, 0))),
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_ipc_collect": lambda: None,
        "_cuda_CUDAAllocator_AllocatorState": type("_cuda_CUDAAllocator_AllocatorState", (), {}),  # dynamo imports both
        "_cuda_sleep": _spin,
        "_set_cached_tensors_enabled": lambda enabled: None,
        "_nccl_version": lambda: nccl.VERSION[0] << 32 | nccl.VERSION[1] << 16 | nccl.VERSION[2],
        "_nccl_version_suffix": lambda: b"",
        "_cuda_get_cudnn_benchmark_limit": lambda: settings["benchmark_limit"],
        "_cuda_set_cudnn_benchmark_limit": functools.partial(settings.__setitem__, "benchmark_limit"),
    }


def _memory_functions() -> dict[str, Callable[..., Any]]:
    return {
        "_cuda_memoryStats": statistics.nested,
        "_cuda_resetAccumulatedMemoryStats": statistics.reset_sums,
        "_cuda_memorySnapshot": over_blocks(lambda pool=None: TORCH.sim._snapshot()),
        "_cuda_getMemoryFraction": over_blocks(torch_sim.fraction),
    }


def exchange(index: int) -> int:
    """Make GPU `index` the current one of this thread, unless it is negative; return which was before."""
    before = state.world.current
    if index >= 0:
        state.world.current = state.device_of(index)
    return before


def _spin(cycles: int) -> None:
    """Keep the current stream busy for this many cycles, to within the least time of a kernel."""
    clock = state.world.clock
    kernels = math.ceil(cycles * 1000 / _SPIN_MHZ / max(1, clock.rates.costs.kernel_ns))
    clock.kernel(state.world.current, "spin_kernel", Cost(0, 0, steps=max(1, kernels), host="launch"))


def set_stream(*, stream_id: int, device_index: int, device_type: int) -> None:
    exchange(device_index)
    state.world.clock.streams[device_index] = stream_id


_MEMORY = """memory_allocated max_memory_allocated memory_reserved max_memory_reserved reset_peak_memory_stats
empty_cache mem_get_info"""
_BLOCKS = "set_per_process_memory_fraction"

_REFUSED = """_cuda_cudaHostAllocator _cuda_cudaCachingAllocator_raw_alloc _cuda_cudaCachingAllocator_raw_delete
_cuda_cudaCachingAllocator_enable _cuda_cudaCachingAllocator_is_enabled _cuda_changeCurrentAllocator
_cuda_customAllocator _cuda_getAllocator _cuda_hostMemoryStats _cuda_resetAccumulatedHostMemoryStats
_cuda_resetPeakHostMemoryStats _cuda_setMemoryMetadata _cuda_getMemoryMetadata _cuda_allocationTraceback
_cuda_getCurrentBlasHandle _cuda_getCurrentSolverHandle _cuda_getStreamFromExternal
_cuda_jiterator_compile_and_launch_kernel
_nccl_all_gather _nccl_all_reduce _nccl_broadcast _nccl_reduce _nccl_reduce_scatter _nccl_unique_id _nccl_init_rank"""


class _Runtime(SimpleNamespace):
    """Result of `torch.cuda.cudart()`; functions of the runtime that are not here raise when called."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(refuse, name)


_RUNTIME = _Runtime(
    cudaMemGetInfo=lambda device=None: TORCH.sim.mem_get_info(device),
    cudaGetDeviceCount=lambda: (0, torch.cuda.device_count()),
    cudaProfilerStart=lambda: 0,
    cudaProfilerStop=lambda: 0,
    cudaGetErrorString=lambda code: f"error {int(code)}",
    cudaError=type("cudaError", (int,), {"success": 0}),
)
_RANGES = SimpleNamespace(  # for Nsight, which does not listen here
    rangePushA=lambda text: 0,
    rangePop=lambda: 0,
    rangeStartA=lambda text: 0,
    rangeEnd=lambda number: None,
    deviceRangeStart=lambda text, stream=0: None,
    deviceRangeEnd=lambda handle, stream=0: None,
    markA=lambda text: None,
)
