"""How lesson 07 times a training step, and how it labels what it measured."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.benchmark import Timer

import simgpu
from gpu_course.common import events

__all__ = ["label_of", "time_ms"]


def label_of(device: torch.device) -> str:
    """Return the word that stands beside what was measured on `device`."""
    if simgpu.is_simulated(device):
        return "simulated"
    return "live on the CPU" if device.type == "cpu" else "live"


def time_ms(step: Callable[[], Any], device: torch.device) -> float:
    """Return the median milliseconds of a call of `step`, by the clock of `device`."""
    if device.type == "cpu":
        return Timer("step()", globals={"step": step}).blocked_autorange().median * 1e3
    repeats = 1 if simgpu.is_simulated(device) else 5  # simulated times repeat exactly
    return events.median_ms(step, device, repeats=repeats)
