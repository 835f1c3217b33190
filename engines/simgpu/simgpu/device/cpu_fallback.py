"""Operators without a kernel on MPS or XPU: an error, or the CPU's kernel on request.

By the environment as it is when the face is switched on, or when a program that simgpu runs imports torch. Words and
rules: MPSFallback.mm in aten/src/ATen/mps, and XPUFallback.template of torch-xpu-ops, in `machine.kernels_of_kinds`.
"""

import builtins
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from simgpu.ground import device_kind, places
from simgpu.ground.calls import Call
from simgpu.ground.torch_internals import Args, Kwargs, Operator
from simgpu.machine import kernels_of_kinds

_Run = Callable[[Operator, Args, Kwargs], Any]
_SWITCH = {"mps": "PYTORCH_ENABLE_MPS_FALLBACK", "xpu": "PYTORCH_ENABLE_XPU_FALLBACK"}
_MISSING = {
    "mps": "The operator 'aten::{}' is not currently implemented for the MPS device. If you want this op to be "
    "considered for addition please comment on https://github.com/pytorch/pytorch/issues/141287 and mention use-case, "
    "that resulted in missing op as well as commit hash {}. As a temporary fix, you can set the environment variable "
    "`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op. WARNING: this will be slower than "
    "running natively on MPS.",
    "xpu": "The operator 'aten::{}' is not currently implemented for the XPU device. Please open a feature on "
    "https://github.com/intel/torch-xpu-ops/issues. You can set the environment variable "
    "`PYTORCH_ENABLE_XPU_FALLBACK=1` to use the CPU implementation as a fallback for XPU unimplemented operators. "
    "WARNING: this will bring unexpected performance compared with running natively on XPU.",
}
_FALLS = {
    "mps": "The operator 'aten::{}' is not currently supported on the MPS backend and will fall back to run on the "
    "CPU. This may have performance implications.",
    "xpu": "Aten Op fallback from XPU to CPU happends. This may have performance implications. If need debug the "
    "fallback ops please set environment variable `PYTORCH_DEBUG_XPU_FALLBACK=1` ",
    "debug": "The operator 'aten::{} on the XPU backend is falling back to run on the CPU.",
}
_environment = {"enabled": False, "debug": False, "inside": False}  # `inside` of an operator that runs on the CPU
_named: set[str] = set()  # operators that the environment names to run on the CPU
_warned: set[str] = set()  # kinds: once a process, for whichever operator comes first


def read_environment() -> None:
    """Take the settings that PyTorch takes as it is loaded."""
    kind = device_kind.kind
    _environment["enabled"] = _is_set(_SWITCH.get(kind, ""))
    _environment["debug"] = kind == "xpu" and _is_set("PYTORCH_DEBUG_XPU_FALLBACK")
    _named.clear()
    for name in filter(None, os.environ.get("PYTORCH_XPU_FALLBACK_OP", "").split(",") if kind == "xpu" else ()):
        _named.add(name)
        warnings.warn(f"The operator '{name}' registered to be forced to fallback to CPU.", stacklevel=2)


def read_environment_late() -> None:
    """Take them again where the program that begins now imports torch first, which is imported already."""
    plain = builtins.__import__

    def imported(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "torch":
            builtins.__import__ = plain
            read_environment()
        return plain(name, *args, **kwargs)

    builtins.__import__ = imported


def _is_set(variable: str) -> bool:
    """Return whether a variable holds another number than 0, as `std::stoi` reads it."""
    text = os.environ.get(variable, "").strip()
    digits = text.lstrip("+-")
    return bool(digits[:1].isdecimal() and int("".join(c for c in digits if c.isdecimal())))


def way_of(func: Operator, run: _Run) -> _Run | None:
    """Return the substitute for an operator without a kernel on this kind of device; None where it has one."""
    kind = device_kind.kind
    if kind not in _SWITCH or func.namespace != "aten":
        return None
    base, name = func._overloadpacket.__name__, func._schema.name.removeprefix("aten::")
    name += f".{func._schema.overload_name}" if func._schema.overload_name else ""
    always = kernels_of_kinds.on_the_cpu(kind)
    if base == "linalg_pinv" and kind == "mps":
        return partial(_by_values, run)
    named = not _named.isdisjoint((name, f"{base}.out", f"{base}.{func._overloadname}"))
    if base in always or name in always or named:
        return partial(_fall_back, kernels_of_kinds.named(name), run)
    missing = kernels_of_kinds.without_kernel(kind).get(name)
    return None if missing is None else partial(_without_kernel, missing, run)


def refuse_factory(func: Operator) -> bool:
    """Raise where a factory has no kernel; return whether it runs on the CPU, after its warning."""
    way = way_of(func, lambda func, args, kwargs: True)
    return way is not None and bool(way(func, (), {}))


def missing(name: str) -> NotImplementedError:
    """Return the error of an operator, such as "add.Tensor", without a kernel."""
    return NotImplementedError(_MISSING[device_kind.kind].format(name, torch.version.git_version))


def _without_kernel(name: str, run: _Run, func: Operator, args: Args, kwargs: Kwargs) -> Any:
    if not (_environment["enabled"] or _environment["inside"]):
        raise missing(name)
    return _fall_back(name, run, func, args, kwargs)


def _fall_back(name: str, run: _Run, func: Operator, args: Args, kwargs: Kwargs) -> Any:
    """Warn and run an operator on the CPU; its parts run there too, without a warning of their own."""
    if _environment["inside"]:
        return run(func, args, kwargs)
    _warn(name)
    _environment["inside"] = True
    try:
        return run(func, args, kwargs)
    finally:
        _environment["inside"] = False


def register(library: torch.library.Library) -> None:
    """Patch operators that PyTorch decomposes earlier to act as on MPS: `linalg.svd`, `matrix_rank` and `pinv`."""
    svd, ranks = torch.ops.aten.linalg_svd.default, torch.ops.aten.linalg_matrix_rank
    taken_apart = partial(_fall_back, "linalg_svd", lambda func, args, kwargs: func.decompose(*args, **kwargs), svd)
    library.impl("linalg_svd", lambda *args, **kwargs: taken_apart(args, kwargs), "AutogradMeta")
    for overload in ("default", "tol_tensor", "atol_rtol_tensor", "atol_rtol_float"):
        operator = getattr(ranks, overload)
        library.impl(operator.name().removeprefix("aten::"), partial(_rank, operator), "AutogradMeta")
    for overload in ("default", "atol_rtol_float"):
        operator = getattr(torch.ops.aten.linalg_pinv, overload)
        library.impl(operator.name().removeprefix("aten::"), partial(_inverse, operator), "AutogradMeta")


def _inverse(operator: Operator, *args: Any, **kwargs: Any) -> Any:
    """Compute `linalg.pinv` with tolerances in float32, as LinearAlgebra.cpp does on MPS; elsewhere in float64."""
    call = Call(operator, args, kwargs)
    given = (0.0, call["rcond"]) if operator._overloadname == "default" else (call["atol"], call["rtol"])
    atol, rtol = (None if one is None else torch.full((), one, device=args[0].device) for one in given)
    return torch.ops.aten.linalg_pinv.atol_rtol_tensor(args[0], atol=atol, rtol=rtol, hermitian=call["hermitian"])


def _by_values(run: _Run, func: Operator, args: Args, kwargs: Kwargs) -> Any:
    """Compute `linalg.pinv` by singular values, which come from the CPU, or by eigenvalues, for which is no kernel."""
    if Call(func, args, kwargs)["hermitian"]:
        return _without_kernel("_linalg_eigh.eigenvalues", run, func, args, kwargs)
    return _fall_back("linalg_svd", run, func, args, kwargs)


def _rank(operator: Operator, *args: Any, **kwargs: Any) -> Any:
    name = "_linalg_eigh.eigenvalues" if Call(operator, args, kwargs)["hermitian"] else "_linalg_svd.U"
    return _without_kernel(name, _on_the_cpu, operator, args, kwargs)


def _on_the_cpu(func: Operator, args: Args, kwargs: Kwargs) -> torch.Tensor:
    moved = [one.cpu() if isinstance(one, torch.Tensor) else one for one in args]
    return func(*moved, **kwargs).to(args[0].device)


def _warn(name: str) -> None:
    kind = device_kind.kind
    if _environment["debug"]:
        places.warn(_FALLS["debug"].format(name))
    elif kind not in _warned or torch.is_warn_always_enabled():
        _warned.add(kind)
        places.warn(_FALLS[kind].format(name))
