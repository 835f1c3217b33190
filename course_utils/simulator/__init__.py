"""What would a GPU do with this program? A simulated GPU, device type `sim`, for machines that have none.

Simulated: where a tensor is, the errors that CUDA gives, memory that runs out, queues, copies and a virtual clock.
Not simulated: the values. The CPU's own kernels compute them, so they and the random numbers are the CPU's.
Left out of the time model: caches, occupancy, choice among kernels, the host's own work between two operations. Peak
rates come from data sheets (`course_utils.gpus`), so real kernels are slower; fixed costs are assumptions (`Costs`).
More lenient than CUDA: a copy to the device takes its values at the call, also a non-blocking one from pinned memory,
and CPU generators are taken. Refused with an error: torch.compile, sparse, quantized and nested tensors, lazy modules
before they have shapes, sending tensors to other processes.
"""

from __future__ import annotations

import torch

from course_utils import _checked
from course_utils.simulator._model import Costs, Record, World
from course_utils.simulator._timeline import Timeline, timeline

__all__ = [
    "Costs", "Record", "Timeline", "clock_ms", "configure", "enable", "enabled", "reset", "timeline", "unavailable",
]  # fmt: skip

_settings: dict | None = None


def enabled() -> bool:
    """Return whether the device type `sim` exists in this process."""
    return _settings is not None


def unavailable() -> str | None:
    """Return why the simulated GPU cannot be enabled in this process, or None if it can."""
    if enabled():
        return None
    for name in ("cuda", "xpu", "mps"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return f"this process has a real accelerator ({name}); the simulated GPU is never enabled beside one"
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone" or hasattr(torch, "sim"):
        return f"another package has taken PyTorch's extension point for devices, under the name {taken!r}"
    needed = {
        "torch.library.get_kernel": hasattr(torch.library, "get_kernel"),
        "device guards in Python": hasattr(
            getattr(torch._C, "_acc", None), "register_python_privateuseone_device_guard"
        ),
        "wrapper tensors": hasattr(torch.Tensor, "_make_wrapper_subclass"),
    }
    missing = [name for name, there in needed.items() if not there]
    return f"torch {torch.__version__} lacks {', '.join(missing)}" if missing else None


def enable(gpus: int = 2, spec: str = "T4", capacity: str | int = "1 GiB") -> None:
    """Register the device type `sim` with `gpus` simulated GPUs, once a process.

    `spec` names a row of `course_utils.gpus` and sets rates; `capacity` is the memory of each GPU ("64 MiB" or bytes),
    small enough to reach. A second call with other `gpus` raises ValueError; other `spec` and `capacity` take effect.
    Raises RuntimeError with the reason where the simulated GPU cannot be (`unavailable`).
    """
    global _settings
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= 16:
        raise ValueError(f"gpus must be a whole number from 1 to 16, not {gpus!r}")
    row, size = _checked.row("spec", spec), _checked.size_bytes("capacity", capacity)
    if enabled():
        if gpus != _settings["gpus"]:
            raise ValueError(f"gpus is {_settings['gpus']} already and cannot change in one process to {gpus}")
    else:
        reason = unavailable()
        if reason is not None:
            raise RuntimeError(f"the simulated GPU cannot be enabled: {reason}")
        _start(gpus, row, size)
    _settings = {"gpus": gpus, "spec": spec, "capacity": capacity}
    configure(spec=spec, capacity=capacity)


def _start(count: int, row, size: int) -> None:
    from course_utils.simulator import _module, _register, _special, _state  # noqa: F401

    _state.world = World(count, row, size)
    _state.meta_devices[:] = [torch.device("meta", index) for index in range(count)]
    module = _module.make_module()
    _register.register(module)
    _state.sim_devices[:] = [torch.device("sim", index) for index in range(count)]


def _world() -> World:
    if not enabled():
        raise RuntimeError("the simulated GPU is not enabled: call simulator.enable() first")
    from course_utils.simulator import _state

    return _state.world


def configure(*, spec: str | None = None, capacity: str | int | None = None, costs: Costs | None = None) -> None:
    """Change the rates, the memory of each GPU, or the fixed costs, from now on. Tensors stay as they are.

    Raises ValueError or TypeError that names the argument; then nothing is changed.
    """
    world = _world()
    row = None if spec is None else _checked.row("spec", spec)
    size = None if capacity is None else _checked.size_bytes("capacity", capacity)
    if costs is not None:
        _check_costs(costs)
    with world.lock:
        world.spec = row or world.spec
        world.costs = costs or world.costs
        for gpu in world.gpus:
            gpu.capacity_bytes = size or gpu.capacity_bytes


def reset() -> None:
    """Go back to the settings of `enable()`, the clock to zero, empty queues, peaks equal to the bytes alive now."""
    world = _world()
    configure(spec=_settings["spec"], capacity=_settings["capacity"], costs=Costs())
    torch.sim.set_device(0)
    world.restart()


def clock_ms() -> float:
    """Return the host's virtual clock in milliseconds since the last `reset()`."""
    return _world().host_ns / 1e6


def _check_costs(costs: object) -> None:
    if not isinstance(costs, Costs):
        raise TypeError(f"costs must be simulator.Costs, not {costs!r}")
    for name in ("launch_ns", "kernel_ns", "copy_ns"):
        given = getattr(costs, name)
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise ValueError(f"costs.{name} must be a whole number of nanoseconds from 0, not {given!r}")
    share = costs.pageable_share
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(f"costs.pageable_share must be a number above 0 and at most 1, not {share!r}")
