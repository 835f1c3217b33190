"""Which operators have no deterministic way on CUDA, and say so under `torch.use_deterministic_algorithms(True)`?

Sources: that function's docstring, the functions `test_nondeterministic_alert_…` in PyTorch's test/test_torch.py, and
the calls of `alertNotDeterministic` in its code for CUDA, from which the words come. Where the code takes another way
instead, as for bilinear interpolation, MaxPool3d, replication padding or scatter_add, nothing is said. Products of
matrices need no CUBLAS_WORKSPACE_CONFIG: PyTorch 2.13 no longer asks for it.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch

from simgpu.ground import places
from simgpu.ground.calls import Call

_Rule: TypeAlias = Callable[[Call], bool]
_MAX = 2  # how `EmbeddingBag(mode="max")` is numbered; `Reduction` numbers none 0
_ASK = (
    "file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for "
    "this operation."
)


class Alert(NamedTuple):
    """How PyTorch calls an operator in its message, and whether a call is one of those without a deterministic way."""

    name: str
    holds: _Rule = lambda call: True


def _is_fractional(call: Call) -> bool:
    dtype = call["dtype"] or call["self"].dtype
    return dtype.is_floating_point or dtype.is_complex


def _without_cudnn(call: Call) -> bool:
    """Return whether grid_sample is PyTorch's own kernel; cuDNN's, for the usual pictures, is not told of."""
    takes = call["interpolation_mode"] == call["padding_mode"] == 0 and call["align_corners"]
    image = call["input"]
    fits = image.size(1) <= 1024 and image.dtype in (torch.float16, torch.float32, torch.float64)
    return not (takes and fits and torch.backends.cudnn.enabled)


_ALERTS = {
    "avg_pool3d_backward": Alert("avg_pool3d_backward_cuda"),
    "_adaptive_avg_pool2d_backward": Alert("adaptive_avg_pool2d_backward_cuda"),
    "_adaptive_avg_pool3d_backward": Alert("adaptive_avg_pool3d_backward_cuda"),
    "adaptive_max_pool2d_backward": Alert("adaptive_max_pool2d_backward_cuda"),
    "fractional_max_pool2d_backward": Alert("fractional_max_pool2d_backward_cuda"),
    "fractional_max_pool3d_backward": Alert("fractional_max_pool3d_backward_cuda"),
    "max_unpool2d": Alert("max_unpooling2d_forward_out"),
    "max_unpool3d": Alert("max_unpooling3d_forward_out"),
    "upsample_linear1d_backward": Alert("upsample_linear1d_backward_out_cuda"),
    "upsample_bilinear2d_backward": Alert("upsample_bilinear2d_backward_out_cuda"),
    "_upsample_bilinear2d_aa_backward": Alert("upsample_bilinear2d_aa_backward_out_cuda"),
    "upsample_bicubic2d_backward": Alert("upsample_bicubic2d_backward_out_cuda"),
    "upsample_trilinear3d_backward": Alert("upsample_trilinear3d_backward_out_cuda"),
    "reflection_pad1d_backward": Alert("reflection_pad1d_backward_out_cuda"),
    "reflection_pad2d_backward": Alert("reflection_pad2d_backward_cuda"),
    "reflection_pad3d_backward": Alert("reflection_pad3d_backward_out_cuda"),
    "nll_loss2d_forward": Alert("nll_loss2d_forward_out_cuda_template", lambda call: call["reduction"] != 0),
    "_ctc_loss_backward": Alert("ctc_loss_backward_gpu"),
    **dict.fromkeys(
        ("_embedding_bag_backward", "_embedding_bag_dense_backward"),
        Alert("embedding_bag_backward_cuda_max", lambda call: call["mode"] == _MAX),
    ),
    "cumsum": Alert("cumsum_cuda_kernel", _is_fractional),
    "cumsum_": Alert("cumsum_cuda_kernel", _is_fractional),
    "put": Alert("put_"),
    "put_": Alert("put_"),
    "histc": Alert("_histc_cuda with floating point input", lambda call: call["self"].is_floating_point()),
    "bincount": Alert("_bincount_cuda", lambda call: call["weights"] is not None),
    "median": Alert("median CUDA with indices output", lambda call: call["dim"] is not None),
    "nanmedian": Alert("median CUDA with indices output", lambda call: call["dim"] is not None),
    "grid_sampler_2d_backward": Alert("grid_sampler_2d_backward_cuda", _without_cudnn),
    "grid_sampler_3d_backward": Alert("grid_sampler_3d_backward_cuda"),
    **dict.fromkeys(
        ("scatter_reduce", "scatter_reduce_"),
        Alert("scatter_reduce_cuda", lambda call: call["reduce"] not in ("sum", "mean")),
    ),
    **dict.fromkeys(("index_reduce", "index_reduce_"), Alert("index_reduce_cuda")),
}


def alert_of(name: str) -> Alert | None:
    """Return what there is to say of an operator of ATen; None for one that is deterministic, or takes such a way."""
    return _ALERTS.get(name)


@contextmanager
def told(alert: Alert, call: Call) -> Generator[None]:
    """Say that a call has no deterministic way, where that is so; inside, its kernel for the CPU does not say it again.

    Raises RuntimeError in PyTorch's words, or warns where the program set `warn_only=True`.
    """
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    if alert.holds(call):
        setting = "True, warn_only=True" if warn_only else "True"
        words = (
            f"{alert.name} does not have a deterministic implementation, but you set "
            f"'torch.use_deterministic_algorithms({setting})'. "
        )
        if not warn_only:
            raise RuntimeError(
                f"{words}You can turn off determinism just for this operation, or you can use the 'warn_only=True' "
                f"option, if that's acceptable for your application. You can also {_ASK}"
            )
        places.warn(f"{words}You can {_ASK}")
    torch._C._set_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(True, warn_only=warn_only)
