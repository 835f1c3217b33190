"""Settings of torch, Python and the process that code can leave changed, and their restoration."""

import contextlib
import gc
import logging
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.optim.optimizer as optimizers
from torch import _tensor_str, multiprocessing, overrides
from torch.utils import _python_dispatch

import simgpu
from course_utils import precision

__all__ = ["UNKNOWN", "put_back", "read"]

UNKNOWN = object()  # there is nothing to put back
Pair = tuple[Callable[[], Any], Callable[[Any], Any]]  # how a setting is read, and how it is set


def read() -> dict[str, Any]:
    """Return the current value of each setting, by its name in messages.

    Many can only be asked through names that PyTorch does not promise to keep: what a version lacks is not watched.
    """
    return {name: _value(get) for name, (get, _) in _SETTINGS.items()}


def _value(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (AttributeError, OSError):  # such as that of a working directory which was removed
        return UNKNOWN


def put_back(before: dict[str, Any]) -> list[str]:
    """Put back each setting that differs from `before`, which `read` returned, and return their names."""
    changed = []
    for name, (get, put) in _SETTINGS.items():
        if before[name] is not UNKNOWN and _value(get) != before[name]:
            changed.append(name)
            put(before[name])
    return changed


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
    return getattr(getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), "device", None)


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
    more = before["depth"] - _autocast()["depth"]
    for _ in range(abs(more)):
        (torch.autocast_increment_nesting if more > 0 else torch.autocast_decrement_nesting)()
    if before["depth"] == 0:
        torch.clear_autocast_cache()


def _modes() -> tuple[list[Any], list[Any]]:
    """Return the modes that are entered, of functions (`torch.device`) and of operators, but for the default device."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    functions = [mode for mode in overrides._get_current_function_mode_stack() if mode is not default]
    return functions, _python_dispatch._get_current_dispatch_mode_stack()


def _set_modes(before: tuple[list[Any], list[Any]]) -> None:
    """Put both stacks of modes back, also modes that are gone: an error between two lines of PyTorch's may drop one."""
    functions = overrides._get_current_function_mode_stack()
    own = [mode for mode in functions if mode not in _modes()[0]]  # of the default device, which is set elsewhere
    for _ in functions:
        torch._C._pop_torch_function_stack()
    for mode in own + before[0]:
        torch._C._push_on_torch_function_stack(mode)
    for _ in _modes()[1]:
        _python_dispatch._pop_mode()
    for mode in before[1]:
        _python_dispatch._push_mode(mode)


_AUTOGRAD: Any = cast(Any, torch._C)._autograd  # which stubs leave out


def _saving_hooks() -> Any:
    return _AUTOGRAD._top_saved_tensors_default_hooks(True)


def _leave_saving_hooks(before: Any) -> None:
    while (top := _saving_hooks()) is not None and top != before:
        _AUTOGRAD._pop_saved_tensors_default_hooks()


_inference: list[torch.inference_mode] = []


def _set_inference(before: bool) -> None:
    """Enter a region of the mode of before, for good: a mode that was left on can only be covered, not switched."""
    _inference.append(torch.inference_mode(before))
    _inference[-1].__enter__()


def _simulated_gpu() -> Any:
    """Return rates, costs, habits, memory, budgets that are entered, current streams; unknown until it is enabled."""
    return simgpu.settings() if simgpu.enabled() else UNKNOWN


_HOOKED = torch.nn.modules.module, optimizers


def _global_hooks() -> list[dict[str, Any]]:
    """Return the hooks that all modules and all optimizers run, but for those of the simulated GPU itself."""
    tables = [{name: value for name, value in vars(owner).items() if name.startswith("_global")} for owner in _HOOKED]
    return [{name: _others(v) if isinstance(v, dict) else v for name, v in table.items()} for table in tables]


def _others(hooks: dict[int, Any]) -> dict[int, Any]:
    return {number: hook for number, hook in hooks.items() if not _is_simulators(hook)}


def _is_simulators(hook: object) -> bool:
    return getattr(hook, "__module__", "") == "simgpu.device.enabling"


def _set_global_hooks(before: list[dict[str, Any]]) -> None:
    for owner, table in zip(_HOOKED, before, strict=True):
        for name, value in table.items():
            if isinstance(value, dict):  # handles of hooks refer to the table itself
                hooks = getattr(owner, name)
                own = {number: hook for number, hook in hooks.items() if _is_simulators(hook)}
                hooks.clear()
                hooks.update(value | own)
            else:
                setattr(owner, name, value)


def _choices() -> Pair:
    """Return reader and setter of the kernels and libraries that torch may choose from."""
    names = "cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "mkldnn_enabled"
    libraries = [(getattr(torch._C, f"_get_{name}"), getattr(torch._C, f"_set_{name}")) for name in names]
    cuda, kinds = torch.backends.cuda, ("flash", "mem_efficient", "math", "cudnn")
    attention = [(getattr(cuda, f"{kind}_sdp_enabled"), getattr(cuda, f"enable_{kind}_sdp")) for kind in kinds]
    return _joint(*libraries, *attention)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(before: tuple[bool, bool]) -> None:
    """Put the mode back; the public function tells the compiler too, and so would load it."""
    compiler = "torch._inductor" in sys.modules
    put = torch.use_deterministic_algorithms if compiler else torch._C._set_deterministic_algorithms
    put(before[0], warn_only=before[1])


@dataclass
class _Filters:
    """Filters of warnings: those of whole kinds, and all; a library that is imported adds one for its own warnings."""

    wide: list[tuple]
    every: list[tuple] = field(compare=False)


def _filters() -> _Filters:
    every = list(warnings.filters)
    return _Filters([f for f in every if f[1] is f[3] is None and f[2].__module__ == "builtins"], every)


def _set_filters(before: _Filters) -> None:
    warnings.resetwarnings()  # says that the filters change, too
    cast(list, warnings.filters).extend(before.every)


def _start_method() -> str:
    """Return how processes are started, which is open until the first one."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _set_directory(before: str) -> None:
    with contextlib.suppress(OSError):
        os.chdir(before)


def _recursion_limit() -> int:
    """Return the recursion limit, at least the one that PyTorch's compiler sets when it first makes a kernel."""
    return max(sys.getrecursionlimit(), 2_000)


def _look() -> Any:
    """Return the settings of matplotlib, unknown until it is imported; its backend is settled by the first picture."""
    library = getattr(sys.modules.get("matplotlib"), "rcParams", None)
    return UNKNOWN if library is None else {name: value for name, value in dict.items(library) if name != "backend"}


def _set_look(before: dict[str, Any]) -> None:
    dict.update(sys.modules["matplotlib"].rcParams, before)  # its own update warns of names that are to go


def _joint(*pairs: Pair) -> Pair:
    """Return reader and setter of several settings that share one name in messages."""
    gets, puts = zip(*pairs, strict=True)
    return lambda: [get() for get in gets], lambda before: [put(v) for put, v in zip(puts, before, strict=True)]


_SETTINGS: dict[str, Pair] = {  # by their names in messages
    "the current GPU": (_current_gpus, _set_current_gpus),
    "the simulated GPU's memory, speed or current stream": (_simulated_gpu, simgpu.restore),
    "the modes that are entered": (_modes, _set_modes),
    "the default device": (_default_device, torch.set_default_device),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the inference mode": (torch.is_inference_mode_enabled, _set_inference),
    "the grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": (_autocast, _set_autocast),
    "the hooks for saved tensors": (_saving_hooks, _leave_saving_hooks),
    "the hooks of all modules or optimizers": (_global_hooks, _set_global_hooks),
    "autograd's anomaly mode": (lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
                                lambda before: torch.autograd.set_detect_anomaly(*before)),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the deterministic mode": (_deterministic, _set_deterministic),
    "the precision of float32 matrix products": (precision.read, precision.put_back),
    "which kernels torch may choose": (lambda: _choices()[0](), lambda before: _choices()[1](before)),
    "how NumPy prints and treats errors": _joint((np.get_printoptions, lambda before: np.set_printoptions(**before)),
                                                 (np.geterr, lambda before: np.seterr(**before))),
    "how matplotlib draws": (_look, _set_look),
    "how torch prints tensors": (lambda: dict(vars(_tensor_str.PRINT_OPTS)),
                                 lambda before: vars(_tensor_str.PRINT_OPTS).update(before)),
    "the filters of warnings": (_filters, _set_filters),
    "the settings of logging": _joint(
        (lambda: logging.root.level, logging.root.setLevel), (lambda: logging.root.manager.disable, logging.disable),
        (lambda: list(logging.root.handlers), lambda before: logging.root.handlers.__setitem__(slice(None), before)),
    ),
    "the garbage collector": _joint(
        (gc.isenabled, lambda on: (gc.enable if on else gc.disable)()),
        (gc.get_threshold, lambda before: gc.set_threshold(*before)),
    ),
    "how processes are started": _joint(
        (_start_method, partial(multiprocessing.set_start_method, force=True)),
        (torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
    ),
    "the working directory": (os.getcwd, _set_directory),
    "the recursion limit": (_recursion_limit, sys.setrecursionlimit),
}  # fmt: skip
