"""Internals of PyTorch that its stubs omit, all through `TORCH`, which type checkers accept.

The types are those of what PyTorch's dispatcher hands to Python: an operator, and what it is called with.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload

TORCH: Any = torch  # also `torch.sim`, which the simulator adds
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
