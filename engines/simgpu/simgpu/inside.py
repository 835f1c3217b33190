"""What does PyTorch have inside that its stubs leave out? All of it by way of `TORCH`, which type checkers let pass."""

from typing import Any

import torch

TORCH: Any = torch  # also `torch.sim`, which the simulator adds
BASE: Any = torch._C.TensorBase  # its attributes are descriptors, which stubs show as their values
