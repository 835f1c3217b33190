"""What does PyTorch have inside that its stubs leave out? All of it by way of `TORCH`, which type checkers let pass.

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
