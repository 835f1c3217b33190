"""Driver functions of an XPU build, under the Python code of `torch.xpu`.

As `driver` does for `torch.cuda`, of which it takes streams, events, memory and statistics. What no data sheet of the
table tells of a GPU, such as its number of compute units, is that of CUDA's multiprocessors, or 0.
"""

import functools
import uuid
from types import SimpleNamespace
from typing import Any

import torch

from simgpu.device import state, torch_sim
from simgpu.device.generators import DefaultGenerator
from simgpu.device.state import Device
from simgpu.face import accelerator, driver, graphs, statistics
from simgpu.face.beginning import Beginning
from simgpu.ground import device_kind
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH

VERSION = "20250302"  # of SYCL's compiler, as a program is told that asks
_FLOAT8 = {getattr(torch, f"float8_{name}") for name in ("e5m2", "e4m3fn", "e5m2fnuz", "e4m3fnuz", "e8m0fnu")}
# as C++ numbers kinds of devices
_XPU = int(torch._C._autograd.DeviceType.XPU)  # pyright: ignore[reportAttributeAccessIssue]


class Stream(driver.OfKind):
    """A queue of one simulated GPU, as `torch.xpu.Stream`."""

    kind_number = _XPU
    sycl_queue = property(lambda self: self.stream_id, doc="Stands for the queue that libraries are given.")

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority; the clock ignores both."""
        return 1, -1

    def __repr__(self) -> str:
        return f"torch.xpu.Stream(device={self.device} sycl_queue={self.sycl_queue:#x})"


class Event(torch_sim.Event):
    """A mark in a queue, as `torch.xpu.Event`; times are those of the virtual clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        super().__init__(enable_timing)

    device, sycl_event = driver.Event.device, driver.Event.cuda_event

    def elapsed_time(self, end_event: torch_sim.Event) -> float:
        if self.index is None or end_event.index is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        try:
            return super().elapsed_time(end_event)
        except ValueError as error:
            raise RuntimeError(str(error)) from None

    def __repr__(self) -> str:
        return "torch.xpu.Event(uninitialized)" if self._ns is None else f"torch.xpu.Event({self._ns / 1e6:.3f} ms)"


def replace(put: Replacements) -> None:
    """Patch `torch.xpu`, and whatever asks whether there is XPU, to answer for the simulated GPUs."""
    count = len(state.world.memory.gpus)
    begun, xpu = Beginning(put, torch.xpu), torch.xpu
    put.put(torch._C, _has_xpu=True, **_functions(count, begun))
    memory = {name: getattr(TORCH.sim, name) for name in driver._MEMORY.split()}
    memory |= {name: driver.over_blocks(getattr(TORCH.sim, name)) for name in driver._BLOCKS.split()}
    for owner in (xpu, xpu.memory):
        put.put(owner, **{name: function for name, function in memory.items() if hasattr(owner, name)})
    for owner in (xpu, xpu.streams):
        put.put(owner, Stream=Stream, Event=Event)
    put.put(
        xpu, _is_in_bad_fork=lambda: state.forked, default_generators=tuple(map(DefaultGenerator, range(count))),
        _get_device_properties=_properties, _exchange_device=driver.exchange, _cached_device_count=None,
        _device_count_zes=lambda: -1, is_available=lambda: xpu.device_count() > 0,
        _maybe_exchange_device=accelerator.another(driver.exchange),
    )  # fmt: skip
    for function in (xpu.get_device_capability, xpu.device_count):  # PyTorch 2.10 keeps the second's answer, too
        put.forget(function)
    put.put(torch.version, xpu=VERSION)
    same = ("current_stream", "set_stream", "memory_stats", "reset_accumulated_memory_stats")
    of_module = {"set_device_index": "set_device", **dict(zip(same, same, strict=True))}
    doubles = {torch.float64, torch.complex128} - set(device_kind.current.no_kernels)
    accelerator.replace(put, Stream, torch_sim.Event, of_module, accelerator.FORMATS | _FLOAT8 | doubles)
    put.put(torch.accelerator, device_index=xpu.device)


def _functions(count: int, begun: Beginning) -> dict[str, Any]:
    """Return stand-ins for the functions of C++."""

    def counted() -> int:
        begun.ask()
        return count

    streams = state.world.clock.streams
    return {
        "_xpu_init": lambda: None, "_xpu_getDeviceCount": counted, "_xpu_getDevice": lambda: state.world.current,
        "_xpu_setDevice": driver.exchange, "_xpu_exchangeDevice": driver.exchange,
        "_xpu_maybeExchangeDevice": driver.exchange, "_xpu_isInBadFork": lambda: state.forked,
        "_xpu_synchronize": lambda device: TORCH.sim.synchronize(device),
        "_xpu_canDeviceAccessPeer": lambda *places: len([*map(state.device_of, places)]) == 2,
        "_xpu_getCurrentStream": lambda index: (streams[index], index, _XPU), "_xpu_setStream": driver.set_stream,
        "_xpu_getCurrentRawStream": lambda index: streams[index],
        "_xpu_getArchFlags": lambda: "", "_xpu_emptyCache": lambda: TORCH.sim.empty_cache(),
        "_xpu_memoryStats": statistics.nested, "_xpu_resetAccumulatedMemoryStats": statistics.reset_sums,
        "_xpu_resetPeakMemoryStats": lambda device: TORCH.sim.reset_peak_memory_stats(device),
        "_xpu_getMemoryInfo": lambda device: TORCH.sim.mem_get_info(device),
        "_xpu_getMemoryFraction": driver.over_blocks(torch_sim.fraction),
        "_xpu_setMemoryFraction": driver.over_blocks(torch_sim._set_fraction),
        "_xpu_memorySnapshot": driver.over_blocks(lambda pool=None: TORCH.sim._snapshot()),
        "_xpu_recordMemoryHistory": driver.over_blocks(lambda *args: TORCH.sim._record_memory_history(args[0])),
        "_xpu_isCurrentStreamCapturing": graphs.is_capturing,
        "_xpu_getStreamFromExternal": functools.partial(driver.refuse, "get_stream_from_external"),
        "_xpu_getAllocator": functools.partial(driver.refuse, "_get_current_allocator"),
        "_XpuDeviceProperties": SimpleNamespace,
    }  # fmt: skip


def _properties(index: Device) -> SimpleNamespace:
    """Return the properties of a GPU, as `torch.xpu.get_device_properties` does."""
    spec, number = state.world.clock.machine.gpu, state.device_of(index)
    halves = "bf16" in spec.peak_tflops
    units = spec.multiprocessors or 0
    return SimpleNamespace(
        name=f"Simulated {spec.name}", platform_name="simgpu", vendor="simgpu", device_id=0, driver_version="0",
        version="0", max_compute_units=units, gpu_eu_count=units, gpu_subslice_count=units, max_work_group_size=1024,
        max_num_sub_groups=64, sub_group_sizes=[16, 32], local_mem_size=65536, last_level_cache_size=0,
        memory_clock_rate=0, memory_bus_width=0, has_fp16=True, has_fp64=torch.float64 not in
        device_kind.current.no_kernels, has_atomic64=True, has_bfloat16_conversions=halves,
        has_subgroup_matrix_multiply_accumulate=halves, has_subgroup_2d_block_io=halves,
        has_subgroup_matrix_multiply_accumulate_tensor_float32=halves, is_integrated_gpu=False,
        total_memory=state.world.memory.gpus[number].capacity_bytes, architecture=0, type="gpu",
        uuid=uuid.uuid5(uuid.NAMESPACE_OID, f"{spec.name} {number}").bytes,
    )  # fmt: skip
