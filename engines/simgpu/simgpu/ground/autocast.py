"""Operator lists of `torch.autocast`, by device and number format.

Source: "CUDA Ops that can autocast to float16", "… float32", "… promote to the widest input type" in PyTorch's AMP
documentation, https://docs.pytorch.org/docs/stable/amp.html. Weights are cast at each use, not once a region.
MPS and XPU have fewer operators on their lists, by PyTorch's own registrations, which its dispatcher tells.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeGuard

import torch
from torch.utils._pytree import tree_leaves, tree_map

from simgpu.ground.torch_internals import Operator

_KEYS = {
    "sim": "AutocastPrivateUse1", "cuda": "AutocastCUDA", "cpu": "AutocastCPU", "mps": "AutocastMPS",
    "xpu": "AutocastXPU",
}  # fmt: skip
_KEY_SETS = {kind: torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)) for kind, key in _KEYS.items()}
# ruff: noqa: SIM905
_LOWER = """conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding conv_tbc conv_transpose1d
conv_transpose2d.input conv_transpose3d.input convolution _convolution prelu addmm addmv addr matmul einsum mm mv
linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
lstm.input gru.input rnn_tanh.input rnn_relu.input lstm.data gru.data
rnn_tanh.data rnn_relu.data scaled_dot_product_attention""".split()
_LOWER.append("_sparse_addmm")  # is made of addmm (`_sparse_addmm` in SparseTensorMath.cpp)
_FLOAT32 = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm cosine_similarity poisson_nll_loss
cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp prod softmax.int log_softmax.int cumprod cumsum
linalg_vector_norm linalg_matrix_norm sum sum.dim_IntList linalg_matrix_norm.str_ord norm.Scalar norm.ScalarOpt_dim
frobenius_norm.dim nuclear_norm nuclear_norm.dim prod.dim_int rms_norm upsample_nearest1d upsample_nearest2d
upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d
upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa""".split()
_FLOAT32.extend(["linalg_matrix_sqrth"] if hasattr(torch.ops.aten, "linalg_matrix_sqrth") else [])  # since PyTorch 2.15
_PROMOTE = """addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add""".split()


def register_rules(library: torch.library.Library, kind: str) -> None:
    """Register CUDA's autocast lists, or those of `kind`, for `torch.autocast(kind)` while `library` lives."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(_KEYS[kind]) if kind in ("mps", "xpu") else ()
    if kind == "cpu":  # the CPU's own list has it; CUDA casts what it is made of
        library.impl("cross_entropy_loss", torch.library.fallthrough_kernel, _KEYS[kind], allow_override=True)
    rules = (
        (_LOWER, lambda tensors: torch.get_autocast_dtype(kind)),
        ([*_FLOAT32, *(["batch_norm"] if kind == "mps" else [])], lambda tensors: torch.float32),
        (_PROMOTE, _widest), (["binary_cross_entropy"], _refuse),
    )  # fmt: skip
    for names, choose in rules:
        for name in names:
            if registered and f"aten::{name}" not in registered:
                continue
            operator = operator_of(name)
            library.impl(name, partial(_cast_and_call, kind, operator, choose), _KEYS[kind], allow_override=True)


def operator_of(name: str) -> Operator:
    """Return the operator of ATen that a registration calls `name`, such as "conv1d" or "softmax.int"."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def see_wrapped_tensors(kind: str) -> None:
    """Apply autocast's rules to this thread's operators on any tensors, while autocast is on.

    `torch.func` wraps tensors, and a wrapper has no key of autocast here: C++ derives it from the device. Without it an
    operator would be cast below `grad`, whose backward pass then knows nothing of the cast.
    """
    torch._C._dispatch_tls_set_dispatch_key_included(getattr(torch._C.DispatchKey, _KEYS[kind]), True)


def _cast_and_call(
    kind: str, operator: Operator, choose: Callable[[list[torch.Tensor]], torch.dtype | None], *args: Any, **kwargs: Any
) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if _is_on(kind, leaf)]
    dtype = choose(tensors) if tensors else None
    with torch._C._ExcludeDispatchKeyGuard(_KEY_SETS[kind]):  # pyright: ignore[reportArgumentType]
        if dtype is not None and any(tensor.dtype is not dtype for tensor in tensors):
            args, kwargs = tree_map(partial(_cast, kind, dtype), (args, kwargs))  # pyright: ignore[reportArgumentType]
        return operator(*args, **kwargs)


def _is_on(kind: str, value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.device.type == kind


def _eligible(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _cast(kind: str, dtype: torch.dtype, value: Any) -> Any:
    return value.to(dtype) if _is_on(kind, value) and _eligible(value) else value


def _widest(tensors: list[torch.Tensor]) -> torch.dtype | None:
    kinds = {tensor.dtype for tensor in tensors if _eligible(tensor)}
    return torch.float32 if torch.float32 in kinds else None


def _refuse(tensors: list[torch.Tensor]) -> NoReturn:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
        "binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss instead."
    )
