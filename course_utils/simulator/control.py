"""How is the simulated GPU switched on, set and reset, and where is it?"""

from __future__ import annotations

import torch

from course_utils import gpus as table
from course_utils.base import arguments
from course_utils.simulator import state
from course_utils.simulator.model import Costs, World

__all__ = ["clock_ms", "configure", "enable", "enabled", "reset", "unavailable", "world"]

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
    row, size = table.get(spec, "spec"), arguments.size_bytes("capacity", capacity)
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
    from course_utils.simulator import module, register, special  # noqa: F401  (special: its operators)

    state.world = World(count, row, size)
    state.meta_devices[:] = [torch.device("meta", index) for index in range(count)]
    register.register(module.make_module())
    state.sim_devices[:] = [torch.device("sim", index) for index in range(count)]


def world() -> World:
    """Return the simulated GPUs of this process. Raises RuntimeError where they are not enabled."""
    if not enabled():
        raise RuntimeError("the simulated GPU is not enabled: call simulator.enable() first")
    return state.world


def configure(*, spec: str | None = None, capacity: str | int | None = None, costs: Costs | None = None) -> None:
    """Change the rates, the memory of each GPU, or the fixed costs, from now on. Tensors stay as they are.

    Raises ValueError or TypeError that names the argument; then nothing is changed.
    """
    here = world()
    row = None if spec is None else table.get(spec, "spec")
    size = None if capacity is None else arguments.size_bytes("capacity", capacity)
    if costs is not None:
        _check_costs(costs)
    with here.lock:
        here.spec = row or here.spec
        here.costs = costs or here.costs
        for gpu in here.gpus:
            gpu.capacity_bytes = size or gpu.capacity_bytes


def reset() -> None:
    """Go back to the settings of `enable()`, the clock to zero, empty queues, peaks equal to the bytes alive now."""
    here = world()
    configure(spec=_settings["spec"], capacity=_settings["capacity"], costs=Costs())
    torch.sim.set_device(0)
    here.restart()


def clock_ms() -> float:
    """Return the host's virtual clock in milliseconds since the last `reset()`."""
    return world().host_ns / 1e6


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
