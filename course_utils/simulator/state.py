"""Where are the simulated GPUs of this process? The one world, its devices, and whether this is a forked child."""

from __future__ import annotations

import torch

from course_utils.simulator.model import World

__all__ = ["FORKED", "device_of"]

world: World | None = None  # set by simulator.enable
meta_devices: list[torch.device] = []  # what C++ sees
sim_devices: list[torch.device] = []  # what Python sees
forked = False  # set in a forked child
FORKED = (
    "Cannot re-initialize sim in forked subprocess. To use the simulated GPU with multiprocessing, you must use the "
    "'spawn' start method"
)


def device_of(device: torch.device | str | int | None) -> int:
    """Return the index of a simulated GPU; no index means the current one. Raises as CUDA does if there is none."""
    index = device if isinstance(device, int) else None if device is None else torch.device(device).index
    if index is None:
        return world.current
    if not 0 <= index < len(world.gpus):
        raise torch.AcceleratorError(
            f"sim error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs? "
            f"This machine simulates {len(world.gpus)}: sim:0 to sim:{len(world.gpus) - 1}."
        )
    return index
