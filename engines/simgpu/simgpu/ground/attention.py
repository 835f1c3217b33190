"""Kernel choice of CUDA's attention, and its values where the CPU has no such kernel.

PyTorch 2.13 chooses in `sdp_utils.cpp` of aten/src/ATen/native/transformers/cuda. GPUs older than compute capability
8.0 have no flash attention, and for bfloat16 the formula alone (`less_than_sm80_mem_efficient_dtypes`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from simgpu.ground.torch_internals import above_autograd

aten = torch.ops.aten
FLASH, EFFICIENT, FORMULA = "flash", "efficient", "formula"
_WIDEST_FLASH, _WIDEST_CUDNN = 256, 128  # numbers of a head
_HALF = (torch.float16, torch.bfloat16)
_ALIGNED_BYTES = 16  # of a head, for the memory-efficient kernel
_AMPERE = (8, 0)
_ROWS = 32  # to whose multiple the memory-efficient kernel fills what it keeps for backward


def choice(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, causal: bool, gqa: bool,
    capability: tuple[int, int] | None = None,
) -> str:  # fmt: skip
    """Return which kernel CUDA takes: FLASH, EFFICIENT, which stands for cuDNN's too, or the FORMULA with all scores.

    Raises CUDA's RuntimeError where the program has switched off all that could do it on a GPU of this capability.
    """
    allowed = torch.backends.cuda
    forced = not allowed.math_sdp_enabled()
    old = (capability or _AMPERE) < _AMPERE
    if _is_dense(query, key, value, gqa):
        if allowed.flash_sdp_enabled() and not old and _is_for_flash(query, key, value, mask, causal):
            return FLASH
        known = not (old and query.dtype is torch.bfloat16)
        if allowed.mem_efficient_sdp_enabled() and known and _is_for_efficient(query, key, value):
            return EFFICIENT
        if allowed.cudnn_sdp_enabled() and forced and not old and _is_for_cudnn(query, value):  # behind the formula
            return EFFICIENT
    if forced:
        raise RuntimeError("No available kernel. Aborting execution.")
    return FORMULA


def _is_dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gqa: bool) -> bool:
    """Return whether these are batches of heads, (batch, heads, length, width), that the kernels take."""
    three = query, key, value
    if any(one.dim() != 4 or one.is_nested or 0 in one.shape or one.stride(-1) != 1 for one in three):
        return False
    heads = [one.size(1) for one in three]
    alike = heads[1] == heads[2] and (heads[0] % heads[1] == 0 if gqa else heads[0] == heads[1])
    return alike and query.size(0) == key.size(0) == value.size(0) and query.dtype == key.dtype == value.dtype


def _is_for_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> bool:
    square = not causal or query.size(-2) == key.size(-2)
    same = query.size(-1) == key.size(-1) == value.size(-1) <= _WIDEST_FLASH
    return query.dtype in _HALF and mask is None and square and same


def _is_for_cudnn(query: torch.Tensor, value: torch.Tensor) -> bool:
    fits = all(one.size(-1) % 8 == 0 and one.size(-1) <= _WIDEST_CUDNN for one in (query, value))
    return query.dtype in _HALF and fits and value.size(-2) > 1


def _is_for_efficient(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    grain = _ALIGNED_BYTES // query.itemsize
    aligned = all(one.size(-1) % grain == 0 and one.storage_offset() % grain == 0 for one in (query, key, value))
    return query.dtype in (*_HALF, torch.float32) and query.size(-1) == key.size(-1) and aligned


# ---- doing it
def fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    inner: Sequence[torch.Tensor], capability: tuple[int, int] | None = None,
) -> torch.Tensor | None:  # fmt: skip
    """Return the result of the fused kernel that CUDA chooses; None where it chooses the formula.

    It is the CPU's own where that can do it. `inner` are query, key, value and the mask, if there is one, on the CPU.
    """
    both = attn_mask is not None and is_causal  # PyTorch refuses it
    if query.dim() == 3 and not both and _is_fused_on_the_cpu(inner, dropout_p, is_causal, scale, enable_gqa):
        inner = [_with_a_head(one) for one in inner]  # without heads: since torch 2.15 one is put in
        query, key, value = map(_with_a_head, (query, key, value))
        attn_mask = None if attn_mask is None else _with_a_head(attn_mask)
        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa, "inner": inner, "capability": capability}
        mixed = fused(query, key, value, attn_mask, dropout_p, is_causal, **options)
        return None if mixed is None else mixed.squeeze(1)
    if both or choice(query, key, value, attn_mask, is_causal, enable_gqa, capability) == FORMULA:
        return None
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -torch.inf)
    if _is_fused_on_the_cpu(inner, dropout_p, is_causal, scale, enable_gqa):
        return aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )[0]
    if query.size(1) != key.size(1):
        key, value = (one.repeat_interleave(query.size(1) // one.size(1), 1) for one in (key, value))
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:-1], key.size(-2))
    needs = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, needs, dropout_p, is_causal, scale=scale
    )[0]


def _with_a_head(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a batch with one head; a mask that all of a batch share stays as it is."""
    return tensor.unsqueeze(1) if tensor.dim() == 3 else tensor


def _is_fused_on_the_cpu(
    inner: Sequence[torch.Tensor], dropout: float, causal: bool, scale: float | None, gqa: bool
) -> bool:
    """Return whether the CPU has a fused kernel, and would choose it."""
    query, key, value, *masks = inner
    asked = torch.backends.cuda.flash_sdp_enabled() and not dropout and query.size(-1) == value.size(-1)
    if not asked or any(mask.requires_grad for mask in masks):
        return False
    mask = masks[0] if masks else None
    if isinstance(query, FakeTensor):  # PyTorch's choice is for memory that is there
        return query.dim() == 4 and (mask is None or mask.dim() in (2, 4))
    chosen = aten._fused_sdp_choice(query, key, value, mask, dropout, causal, scale=scale, enable_gqa=gqa)
    return chosen == torch.nn.attention.SDPBackend.FLASH_ATTENTION.value


# ---- the memory-efficient kernel on the CPU, which has none: by the formula, whose scores only the host's memory sees
def register(library: torch.library.Library) -> None:
    """Give the CPU the memory-efficient kernel and its backward pass."""
    library.impl("_scaled_dot_product_efficient_attention", _forward, "CPU")
    library.impl("_scaled_dot_product_efficient_attention_backward", _backward, "CPU")


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return the result, what CUDA keeps of each row, and what backward draws the same dropout from, in bits the CPU's.

    Nothing reads what is kept of rows: backward goes by the formula, too.
    """
    drawn_from = torch.get_rng_state() if dropout_p else torch.zeros((), dtype=torch.int64)
    result = _formula(query, key, value, attn_bias, dropout_p, is_causal, scale)
    rows = -(-query.size(-2) // _ROWS) * _ROWS if compute_log_sumexp else 0
    kept = query.new_zeros((*query.shape[:2], rows), dtype=torch.float32)
    laid_out = result.transpose(1, 2).contiguous().transpose(1, 2)  # CUDA's has the heads of a token beside each other
    return laid_out, kept, drawn_from, torch.zeros((), dtype=torch.int64)


def _backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: torch.Tensor | None,
    result: torch.Tensor, kept: torch.Tensor, drawn_from: torch.Tensor, offset: torch.Tensor, dropout_p: float,
    wanted: list[bool], is_causal: bool = False, *, scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Return the gradients of query, key, value and mask, None for those that are not `wanted`."""
    with torch.enable_grad(), torch.random.fork_rng([]), above_autograd():
        if dropout_p:
            torch.set_rng_state(drawn_from)
        query, key, value = (
            one.detach().requires_grad_(needed) for one, needed in zip((query, key, value), wanted[:3], strict=True)
        )
        mask = None if attn_bias is None else attn_bias.detach().requires_grad_(wanted[3])
        leaves = [one if one is not None and one.requires_grad else None for one in (query, key, value, mask)]
        again = _formula(query, key, value, mask, dropout_p, is_causal, scale)
        found = iter(torch.autograd.grad(again, [one for one in leaves if one is not None], grad))
    return tuple(None if one is None else next(found) for one in leaves)


def _formula(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout: float,
    causal: bool, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    return aten._scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, scale=scale)[0]
