"""Which storage is behind a tensor, which tensors are alive, and what is the program doing in which of its lines?"""

from __future__ import annotations

import gc
import linecache
import sys
import traceback
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedTensorMixin

from course_utils import devices
from course_utils.base import places

__all__ = ["found", "phase", "place", "place_of", "resolve", "storage_of", "tensors_in"]


def resolve(device: torch.device | str | None) -> torch.device:
    """Return DEVICE for None, else the device of this machine that is meant, with its index.

    Raises TypeError or ValueError that lists the devices of this machine where it is none of them.
    """
    device = devices.chosen(device)
    if device.type == "cpu":
        return torch.device("cpu")
    if device.index is None:
        index = 0 if device.type == "mps" else torch.get_device_module(device).current_device()
        return torch.device(device.type, index)
    return device


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a dense tensor; None for other layouts and for what has no storage."""
    inner = tensor._inner if tensor.device.type == "sim" and hasattr(tensor, "_inner") else tensor
    if inner.layout is not torch.strided:
        return None
    try:
        return inner.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def tensors_in(value: object) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    return []


def phase(stepping: bool = False) -> str:
    """Return what the program is doing: "forward", "backward", "recomputation" or "optimizer step"."""
    if stepping:
        return "optimizer step"
    if torch._C._current_graph_task_id() == -1:
        return "forward"
    return "recomputation" if torch.is_grad_enabled() else "backward"


def found(device: torch.device) -> list[tuple[torch.Tensor, str]]:
    """Return all tensors on `device` that Python knows, each with its owner; views come as tensors of their own."""
    found_of: dict[type | None, list] = {torch.Tensor: [], nn.Module: [], torch.optim.Optimizer: [], None: []}
    lists: dict[type, list] = {}  # by exact type: asking each of 300,000 objects for its bases takes long
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in lists:
            lists[kind] = found_of[_kind(kind)]
        if lists[kind] is not found_of[None]:
            lists[kind].append(thing)
    tensors, modules, optimizers, _ = found_of.values()
    owned: list[tuple[torch.Tensor, str]] = []
    for optimizer in optimizers:
        states = [list(state.values()) for state in getattr(optimizer, "state", {}).values()]
        owned += [(tensor, "optimizer") for tensor in tensors_in(states)]
    for module in modules:
        owned += [(buffer, "parameters") for buffer in module.__dict__.get("_buffers", {}).values()]
    for tensor in tensors:
        if isinstance(tensor, nn.Parameter):
            owned += [(tensor, "parameters"), (tensor.grad, "gradients")]
    owned += [(tensor, "activations") for tensor in tensors]
    return [(tensor, owner) for tensor, owner in owned if _is_on(tensor, device)]


def _is_on(thing: object, device: torch.device) -> bool:
    """Return whether `thing` is a tensor on `device`; what raises when it is asked is none that we can count."""
    try:
        return isinstance(thing, torch.Tensor) and thing.device == device
    except Exception:
        return False


def _kind(kind: type) -> type | None:
    if issubclass(kind, FakeTensor | UninitializedTensorMixin):  # these have no memory
        return None
    return next((base for base in (torch.Tensor, nn.Module, torch.optim.Optimizer) if issubclass(kind, base)), None)


def place() -> str:
    """Return the reader's innermost line that is running: "train.py:12: y = model(x)", or "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if places.is_readers(frame.f_code.co_filename, frame.f_code.co_name):
            return _line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def place_of(error: BaseException) -> str:
    """Return the reader's innermost line from which `error` came, as `place` does, or ""."""
    calls = reversed(traceback.extract_tb(error.__traceback__))
    return next(
        (_line(call.filename, call.lineno) for call in calls if places.is_readers(call.filename, call.name)), ""
    )


def _line(file: str, number: int) -> str:
    text = linecache.getline(file, number).strip()
    where = f"cell, line {number}" if places.in_cell(file) else f"{Path(file).name}:{number}"
    return f"{where}: {text}" if text else where
