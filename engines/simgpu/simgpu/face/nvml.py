"""NVML, the library behind `nvidia-smi` and `pynvml`, for the simulated GPUs.

While CUDA's face is on, this module is `pynvml`. It knows what data sheets, memory accounts and the virtual clock
know. Sensors there are none: whoever asks for one gets NVMLError_NotSupported, as on GPUs that lack it.
"""

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from simgpu.device import state
from simgpu.face import properties
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH

# The names and their style are NVML's
NVML_SUCCESS, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED = 0, 2, 3
NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO = range(4)
NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = range(2)
nvmlMemory_v2 = 0x02000028
_DRIVER, _CUDA = "570.0", 12080  # of CUDA 12.8, which `torch.version.cuda` says

_asked: dict[int, tuple[int, int]] = {}  # by GPU: busy and host time (ns) when its utilization was last asked


class NVMLError(Exception):
    """An answer of NVML that is none; `value` is its number."""

    value = 999

    def __init__(self, value: int | str | None = None) -> None:
        self.value = value if isinstance(value, int) else type(self).value
        super().__init__(value)


class NVMLError_InvalidArgument(NVMLError):
    """There is no such GPU."""

    value = NVML_ERROR_INVALID_ARGUMENT


class NVMLError_NotSupported(NVMLError, NotImplementedError):
    """The simulated GPU cannot answer."""

    value = NVML_ERROR_NOT_SUPPORTED


class NVMLError_DriverNotLoaded(NVMLError):
    """For programs that catch it; it is not raised here."""

    value = 9


class NVMLError_LibraryNotFound(NVMLError):
    """For programs that catch it; it is not raised here."""

    value = 12


class NVMLError_Uninitialized(NVMLError):
    """For programs that catch it; it is not raised here."""

    value = 1


def replace(put: Replacements) -> None:
    """Install this module as `pynvml` for programs and `torch.cuda`."""
    here = sys.modules[__name__]
    put.put_item(sys.modules, "pynvml", here)
    put.put(torch.cuda, _HAS_PYNVML=True, pynvml=here, _get_nvml_device_index=state.device_of)
    put.put(torch.cuda.memory, _get_nvml_device_index=state.device_of)
    _asked.clear()


def __getattr__(name: str) -> Callable[..., Any]:
    """Return for every other function of NVML one that refuses."""
    if not name.startswith("nvml"):
        raise AttributeError(f"the simulated GPU's pynvml has no {name}")

    def refused(*args: Any, **kwargs: Any) -> None:
        raise NVMLError_NotSupported(f"the simulated GPU has no sensor and no driver that {name} could ask")

    return refused


def nvmlInit() -> None:
    """Do nothing: there is no driver to open."""


def nvmlInitWithFlags(flags: int) -> None:
    """Do nothing: there is no driver to open."""


def nvmlShutdown() -> None:
    """Do nothing: there is no driver to close."""


def nvmlSystemGetDriverVersion() -> str:
    """Return a version that has CUDA 12.8."""
    return _DRIVER


def nvmlSystemGetNVMLVersion() -> str:
    """Return a version that has CUDA 12.8."""
    return f"12.{_DRIVER}"


def nvmlSystemGetCudaDriverVersion() -> int:
    """Return the version of CUDA as NVML writes it: 12080 is 12.8."""
    return _CUDA


nvmlSystemGetCudaDriverVersion_v2 = nvmlSystemGetCudaDriverVersion


def nvmlDeviceGetCount() -> int:
    """Return how many GPUs there are; CUDA_VISIBLE_DEVICES does not matter to NVML."""
    return len(state.world.memory.gpus)


def nvmlDeviceGetHandleByIndex(index: int) -> Any:
    """Return the handle of GPU `index`."""
    if not 0 <= int(index) < nvmlDeviceGetCount():
        raise NVMLError_InvalidArgument(
            f"there is no GPU {index}: the simulated ones are 0 to {nvmlDeviceGetCount() - 1}"
        )
    return SimpleNamespace(index=int(index))


nvmlDeviceGetCount_v2, nvmlDeviceGetHandleByIndex_v2 = nvmlDeviceGetCount, nvmlDeviceGetHandleByIndex


def nvmlDeviceGetHandleByUUID(name: str | bytes) -> Any:
    """Return the handle of the GPU that `nvmlDeviceGetUUID` calls so."""
    wanted = name.decode() if isinstance(name, bytes) else name
    for index in range(nvmlDeviceGetCount()):
        handle = nvmlDeviceGetHandleByIndex(index)
        if nvmlDeviceGetUUID(handle) == wanted:
            return handle
    raise NVMLError_InvalidArgument(f"there is no GPU {wanted}")


def nvmlDeviceGetIndex(handle: Any) -> int:
    """Return the number of a GPU."""
    return handle.index


def nvmlDeviceGetName(handle: Any) -> str:
    """Return the name of a GPU, as `torch.cuda.get_device_name` does."""
    return properties.of(handle.index).name


def nvmlDeviceGetUUID(handle: Any) -> str:
    """Return the unique identifier of a GPU."""
    return f"GPU-{properties.of(handle.index).uuid}"


def nvmlDeviceGetCudaComputeCapability(handle: Any) -> tuple[int, int]:
    """Return the compute capability of a GPU."""
    known = properties.of(handle.index)
    return known.major, known.minor


def nvmlDeviceGetMemoryInfo(handle: Any, version: int | None = None) -> SimpleNamespace:
    """Return total, used and free memory in bytes: what PyTorch has reserved counts as used, and nothing else."""
    free, total = TORCH.sim.mem_get_info(handle.index)
    return SimpleNamespace(total=total, used=total - free, free=free, reserved=0, version=version)


def nvmlDeviceGetUtilizationRates(handle: Any) -> SimpleNamespace:
    """Return as `gpu` in how many of 100 parts of the virtual time since the last question kernels ran.

    How much of the time the memory was read or written nobody knows: `memory` raises.
    """
    clock = state.world.clock
    busy, now = clock.busy_ns[handle.index], clock.queue_ns(handle.index)
    was_busy, then = _asked.get(handle.index, (0, 0))
    if busy < was_busy or now < then:  # the clock began anew
        was_busy, then = 0, 0
    _asked[handle.index] = busy, now
    return _Rates(min(round(100 * (busy - was_busy) / max(now - then, 1)), 100))


class _Rates(SimpleNamespace):
    def __init__(self, gpu: int) -> None:
        super().__init__(gpu=gpu)

    @property
    def memory(self) -> int:
        raise NVMLError_NotSupported("the simulated GPU has no sensor that counts how often its memory is used")


def nvmlDeviceGetPowerManagementLimit(handle: Any) -> int:
    """Return the watts of the data sheet, in milliwatts."""
    watts = state.world.clock.machine.gpu.power_w
    if watts is None:
        raise NVMLError_NotSupported("the data sheet of this GPU tells no power limit")
    return 1000 * watts


nvmlDeviceGetEnforcedPowerLimit = nvmlDeviceGetPowerManagementLimit


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> list[SimpleNamespace]:
    """Return this process, with the bytes that it uses of a GPU, where it uses any."""
    used = nvmlDeviceGetMemoryInfo(handle).used
    return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=used)] if used else []


nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3 = nvmlDeviceGetComputeRunningProcesses


def nvmlDeviceGetGraphicsRunningProcesses(handle: Any) -> list[SimpleNamespace]:
    """Return no process: nothing is drawn."""
    return []


def nvmlSystemGetProcessName(pid: int) -> str:
    """Return the program of a process that `nvmlDeviceGetComputeRunningProcesses` names."""
    return sys.executable
