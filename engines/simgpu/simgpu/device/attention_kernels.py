"""Is there a fused kernel for an attention whose plain formula a program forbids, as `sdpa_kernel` does?

Sources: `select_sdp_backend` and the `check_…` functions in ATen's transformers/cuda/sdp_utils.cpp. What only some
versions of a kernel refuse (long heads, masks of some shapes) is taken.
"""

from contextlib import AbstractContextManager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from simgpu.device import state

_SHORT = (torch.float16, torch.bfloat16)
_AMPERE = (8, 0)


def require(query: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Raise CUDA's error where none of the fused kernels that the program allows takes this attention."""
    allowed = torch.backends.cuda
    recent = (state.world.clock.machine.gpu.compute_capability or _AMPERE) >= _AMPERE
    short = query.dtype in _SHORT and recent
    takes = [
        allowed.flash_sdp_enabled() and short and mask is None and query.size(-1) <= 256,
        allowed.mem_efficient_sdp_enabled() and query.dtype in (torch.float32, torch.float16, *_SHORT[1:] * recent),
        allowed.cudnn_sdp_enabled() and short,
    ]
    if query.dim() != 4 or not any(takes):
        raise RuntimeError("No available kernel. Aborting execution.")


def of_the_cpu() -> AbstractContextManager[None]:
    """Return a context in which the CPU, which has one fused kernel, computes what any of CUDA's would."""
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
