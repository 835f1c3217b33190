"""How many floating-point operations has an operator that PyTorch's own table lacks, or answers slowly for?"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

__all__ = ["FORMULAS"]


def _of_product(first: int) -> Callable[..., int]:
    """Return the formula of an operator that multiplies two matrices, of which the first stands at this place.

    PyTorch's gives the same. Before that it walks through all arguments, which takes longer than a small product.
    """
    return lambda *args, **kwargs: 2 * args[first].numel() * args[first + 1].shape[-1]


def _of_attention(tail: str = "") -> Any:
    """Return PyTorch's formula of fused attention, whose table has not all of its kinds (the CPU's from 2.15 on)."""
    return flop_registry[getattr(torch.ops.aten, f"_scaled_dot_product_flash_attention{tail}")]


# By names of ATen's operators; each takes the arguments of its operator, and its result as `out_val`.
FORMULAS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("mm", "bmm"), _of_product(0)),
    **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_"), _of_product(1)),
    "scaled_dot_product_attention": _of_attention(),
    "_scaled_dot_product_flash_attention_for_cpu": _of_attention(),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _of_attention("_backward"),
    "_scaled_dot_product_attention_math_for_mps": _of_attention(),
}
