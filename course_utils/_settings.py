"""Which settings of the process can code leave changed, and how is each one put back?"""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.utils import _python_dispatch

__all__ = ["SETTINGS"]


def _gpu_modules() -> dict[str, Any]:
    modules = {kind: getattr(torch, kind, None) for kind in ("cuda", "sim")}
    return {kind: module for kind, module in modules.items() if module is not None and module.is_initialized()}


def _current_gpus() -> dict[str, int]:
    """Return for each kind of GPU the index of the current one; a kind that is not in use yet has index 0."""
    return {"cuda": 0, "sim": 0} | {kind: module.current_device() for kind, module in _gpu_modules().items()}


def _set_current_gpus(before: dict[str, int]) -> None:
    for kind, module in _gpu_modules().items():
        module.set_device(before[kind])


def _default_device() -> torch.device | None:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _autocast() -> dict[str, Any]:
    """Return for each kind of device whether autocast is on and in which format, and how deep regions nest.

    The kind of the simulated GPU has another name until it is enabled, which is no change of autocast.
    """
    kept = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _autocast_kinds()]
    torch.autocast_increment_nesting()
    return {"kinds": kept, "cache": torch.is_autocast_cache_enabled(), "depth": torch.autocast_decrement_nesting()}


def _autocast_kinds() -> tuple[str, ...]:
    return "cpu", "cuda", torch._C._get_privateuse1_backend_name()


def _set_autocast(before: dict[str, Any]) -> None:
    """Put autocast back; outside all regions its copies of weights go too, or later regions would use old weights."""
    for kind, (on, dtype) in zip(_autocast_kinds(), before["kinds"], strict=True):
        torch.set_autocast_enabled(kind, on)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(before["cache"])
    depth = _autocast()["depth"]
    while depth > before["depth"]:
        depth = torch.autocast_decrement_nesting()
    while depth < before["depth"]:
        depth = torch.autocast_increment_nesting()
    if depth == 0:
        torch.clear_autocast_cache()


def _modes() -> tuple[list[Any], list[Any]]:
    """Return the modes that are entered, of functions (`torch.device`) and of operators, but for the default device."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    functions = [mode for mode in function_modes() if mode is not default]
    return functions, _python_dispatch._get_current_dispatch_mode_stack()


def _leave_modes(before: tuple[list[Any], list[Any]]) -> None:
    while len(_modes()[0]) > len(before[0]):
        torch._C._pop_torch_function_stack()
    while len(_modes()[1]) > len(before[1]):
        _python_dispatch._pop_mode()


def _saving_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _leave_saving_hooks(before: Any) -> None:
    while (top := _saving_hooks()) is not None and top != before:
        torch._C._autograd._pop_saved_tensors_default_hooks()


_inference: list[torch.inference_mode] = []


def _set_inference(before: bool) -> None:
    """Enter a region of the mode of before, for good: a mode that was left on can only be covered, not switched."""
    _inference.append(torch.inference_mode(before))
    _inference[-1].__enter__()


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


# name in messages: (get, set)
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the current GPU": (_current_gpus, _set_current_gpus),
    "the modes that are entered": (_modes, _leave_modes),
    "the default device": (_default_device, torch.set_default_device),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the inference mode": (torch.is_inference_mode_enabled, _set_inference),
    "the grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": (_autocast, _set_autocast),
    "the hooks for saved tensors": (_saving_hooks, _leave_saving_hooks),
    "autograd's anomaly mode": (_anomaly, lambda before: torch.autograd.set_detect_anomaly(*before)),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the deterministic mode": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "the precision of float32 matrix products": (
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision,
    ),
    "the working directory": (os.getcwd, os.chdir),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
}  # fmt: skip
