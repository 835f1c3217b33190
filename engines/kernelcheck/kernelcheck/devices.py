"""Devices on which a kernel runs as it is, and those whose memory is the host's."""

import torch


def is_real(device: torch.device) -> bool:
    """Return whether `device` is a GPU of CUDA, and not a simulated one of `simgpu` under this name.

    `simgpu` is never switched on in a process that has a real one.
    """
    return device.type == "cuda" and not _simulated()


def on_host(device: torch.device) -> bool:
    """Return whether tensors on `device` lie in memory that the CPU can read: its own, or a simulated GPU's."""
    return device.type == "cpu" or _simulated()


def _simulated() -> bool:
    return torch._C._get_privateuse1_backend_name() == "sim"
