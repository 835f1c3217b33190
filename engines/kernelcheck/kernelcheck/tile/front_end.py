"""Front end of cuTile: everything of the package cuda-tile that kernelcheck uses, private names among it."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import numbers
import operator
from types import ModuleType
from typing import Any

import torch

from kernelcheck.faults import CompileError, KernelFault
from kernelcheck.triton import blocks as triton
from kernelcheck.triton.blocks import DType

__all__ = ["OF_TORCH", "VERSION", "constants", "dtype_of", "final_ir", "python_function", "why_not"]

_ANNOTATED = operator.attrgetter("_annotated_function")  # of a kernel: its function and what its parameters are
VERSION = "1.7"  # of cuda-tile: another one may write its IR in another way
_SCALE = DType("float8_e8m0fnu", torch.float8_e8m0fnu, "float32", "e8m0", "uint8")  # a power of two
OF_TORCH = triton.OF_TORCH | {_SCALE.torch: _SCALE}
TYPES = triton.TYPES | {_SCALE.name: _SCALE}
_NAMES = {"bool_": "int1", "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5", "tfloat32": "float32"}


def why_not() -> str:
    """Return why cuTile cannot run here, in one sentence; "" if it can."""
    try:
        version = importlib.metadata.version("cuda-tile")
    except importlib.metadata.PackageNotFoundError:
        how = 'pip install "cuda-tile==1.7.*", which is there for Linux and Windows'
        return f"cuTile needs NVIDIA's package cuda-tile: {how}; Triton's language, kernelcheck.triton(), needs none."
    if not version.startswith(f"{VERSION}."):
        return f"cuTile runs here by the IR of cuda-tile {VERSION}, and {version} is installed."
    try:
        importlib.import_module("cuda.tile")
    except ImportError as error:  # as in a browser, which has no multiprocessing
        return f"cuda-tile {version} is installed, and cannot be imported here: {error}."
    return ""


@functools.cache
def _modules() -> tuple[ModuleType, ModuleType, ModuleType, Any]:
    """Return the language, its compiler and its signatures, and the newest version of its IR."""
    if why := why_not():
        raise KernelFault("arguments", why)
    names = "cuda.tile", "cuda.tile._compile", "cuda.tile.compilation", "cuda.tile._bytecode.version"
    language, compiler, signatures, versions = map(importlib.import_module, names)
    return language, compiler, signatures, list(versions.BytecodeVersion)[-1]


def python_function(kernel: Any) -> Any:
    """Return the function under @ct.kernel."""
    if not hasattr(kernel, "_annotated_function"):
        raise TypeError(f"a kernel is a function under @ct.kernel, and this is a {type(kernel).__name__}")
    return _ANNOTATED(kernel).pyfunc


def constants(kernel: Any) -> list[bool]:
    """Return for each parameter whether it is a ct.Constant, which the IR has no parameter for."""
    return [bool(getattr(one, "constant", False)) for one in _ANNOTATED(kernel).parameter_annotations]


def dtype_of(kind: Any) -> DType:
    """Return the type of elements of a type of the IR. Raises `KernelFault` for one that cannot run here."""
    return _dtype(kind.dtype)


@functools.cache
def _dtype(dtype: Any) -> DType:
    name = str(dtype)
    if _NAMES.get(name, name) not in TYPES:
        raise KernelFault("language", f"numbers of the type {name} cannot run here")
    return TYPES[_NAMES.get(name, name)]


def final_ir(kernel: Any, named: dict[str, Any]) -> Any:
    """Return the IR of a kernel for arguments by name. Raises `CompileError` with the compiler's own words."""
    function, (language, compiler, signatures, version) = python_function(kernel), _modules()
    storages = [one.untyped_storage()._cdata for one in named.values() if isinstance(one, torch.Tensor)]
    constraints = []
    for (name, value), is_constant in zip(named.items(), constants(kernel), strict=True):
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()._cdata
            kind = getattr(language, str(value.dtype).removeprefix("torch.").replace("bool", "bool_"))
            facts = {"index_dtype": language.int32 if value.numel() < 2**31 else language.int64}
            facts |= {"alias_groups": (f"memory {storage}",) if storages.count(storage) > 1 else ()}
            facts |= {"stride_lower_bound_incl": 0, "may_alias_internally": False}
            constraints.append(signatures.ArrayConstraint(kind, value.ndim, **facts))
        elif is_constant:
            constraints.append(signatures.ConstantConstraint(value))
        elif isinstance(value, numbers.Real):
            kind = "bool_" if isinstance(value, bool) else "int32" if isinstance(value, numbers.Integral) else "float32"
            constraints.append(signatures.ScalarConstraint(getattr(language, kind)))
        else:
            raise KernelFault("arguments", f"{name} is a {type(value).__name__}; a kernel takes tensors and numbers")
    signature = signatures.KernelSignature(constraints, signatures.CallingConvention.cutile_python_v1())
    options = {"sm_arch": "sm_100", "bytecode_version": version, "return_final_ir": True, "return_cubin": False}
    try:
        return compiler.compile_tile(_ANNOTATED(kernel), [signature], **options).final_ir[0]
    except language.TileError as error:
        raise _refusal(error, function) from None


def _refusal(error: Any, function: Any) -> CompileError:
    """Return what cuTile's compiler refuses, at the reader's line."""
    line = getattr(error.loc, "line", None)
    first = inspect.getsourcelines(function)[1]
    text = inspect.getsource(function).splitlines()
    place = -1 if line is None else line - first
    return CompileError(str(error.message), line, text[place] if 0 <= place < len(text) else "")
