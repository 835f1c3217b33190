"""Internals of PyTorch that its stubs omit, all through `TORCH`, which type checkers accept.

The types are those of what PyTorch's dispatcher hands to Python: an operator, and what it is called with.
"""

import functools
import operator
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload

TORCH: Any = torch  # also `torch.sim`, which the simulator adds
_OURS = str(Path(__file__).parents[1])
BASE: Any = torch._C.TensorBase  # its attributes are descriptors, which stubs show as their values

Operator: TypeAlias = "OpOverload[..., Any]"  # such as torch.ops.aten.add.Tensor
Args: TypeAlias = Sequence[Any]  # what an operator is given by place: tensors, numbers, lists of them
Kwargs: TypeAlias = dict[str, Any]  # and what by name


def above_autograd() -> Any:
    """Return a context in which operators record gradients, though the caller is the kernel of an operator."""
    kinds, excluded = TORCH._C.DispatchKey, TORCH._C._dispatch_tls_local_exclude_set()
    for kind in (kinds.AutogradCPU, kinds.AutogradOther, kinds.AutogradFunctionality, kinds.ADInplaceOrView):
        excluded = excluded.remove(kind) if excluded.has(kind) else excluded
    return TORCH._C._ForceDispatchKeyGuard(TORCH._C._dispatch_tls_local_include_set(), excluded)


is_tracing = TORCH._C._is_tracing  # whether TorchScript records what a program computes


@contextmanager
def untraced() -> Generator[None]:
    """Let `torch.jit.trace` record nothing meanwhile: what computes for a GPU, or looks on, is no part of a program."""
    trace = TORCH._C._get_tracing_state()
    _trace_into(None)
    try:
        yield
    finally:
        _trace_into(trace)


def _trace_into(trace: object) -> None:
    with traced():  # C++ refuses to set it where PyTorch has excluded tracing
        TORCH._C._set_tracing_state(trace)


def traced() -> Any:
    """Return a context in which tracing records operators, though the caller is the kernel of one.

    The tracer's key has no name in Python: what is excluded there stays so where it has one.
    """
    kinds = TORCH._C.DispatchKey.__members__.values()
    named = functools.reduce(operator.or_, map(TORCH._C.DispatchKeySet, kinds))
    excluded = TORCH._C._dispatch_tls_local_exclude_set() & named
    return TORCH._C._ForceDispatchKeyGuard(TORCH._C._dispatch_tls_local_include_set(), excluded)


def call_traced(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function for one that stands in its place, whose own caller is named by what the tracer warns of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = function(*args, **kwargs)
    frame, level = sys._getframe(2), 3
    while said and frame.f_back and frame.f_code.co_filename.startswith(_OURS):  # of a report, which looks on
        frame, level = frame.f_back, level + 1
    for one in said:
        warnings.warn(one.message, stacklevel=level)
    return result
