"""Properties of operators on a GPU that neither schema nor tags give, one row each.

It is Python, not TOML, since some cells are functions: formulas of operations, rules of prices. A further column is a
field of `Row` with a default; only the rows that differ from it are touched. What PyTorch's own tags say of an operator
(`torch.Tag`: whether it goes element by element, draws random numbers, has a shape that depends on values) is asked
there, and which operators autocast casts is the list in `ground.autocast`, a copy of PyTorch's, by overloads.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from simgpu.ground.torch_internals import Operator
from simgpu.machine import determinism, formulas, prices, waiting
from simgpu.machine.determinism import Alert
from simgpu.machine.formulas import Formula
from simgpu.machine.missing_kernels import BFLOAT16, BOOL, BYTE, COMPLEX_HALF, HALF, LONG, WHOLE, Lack, of_sparse
from simgpu.machine.prices import Cost
from simgpu.machine.waiting import Rule

__all__ = [
    "ATTENTION", "CONVOLUTIONS", "NORMS", "PLAIN", "PRODUCTS", "ROWS", "Row", "is_library", "kind_of", "name_of",
    "row_of", "takes_host_long",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """The columns. An operator without a row has the defaults.

    Of its kernels on a GPU:
    - `kind`: which kind of operators it is one of, where the words in its name say another (`kind_of`);
    - `flops`: the formula of its operations, where PyTorch's table has none, a slow one or a wrong one;
    - `price`: what its kernels do besides reading their inputs, computing and writing their results;
    - `gathers`: it reads as many elements as it writes, not its whole input;
    - `overwrites`: it writes its first argument without reading it;
    - `memory_only`: it starts no kernel;
    - `asserts`: its kernel checks values on the device, so that an impossible one is told of later;
    - `lacks`: the number formats that the CPU's kernel has and CUDA's has not;
    - `cpu_alone`: PyTorch has it for CPU tensors and not for CUDA's;
    - `too_wide`: what it says of a tensor of more than 25 dimensions (Sorting.cu), where it looks at their number;
    - `alert`: what it says where a program asks for determinism, and when: it has no deterministic way.

    Of the host:
    - `waits`: the host waits for the result, since its size or its value depends on the data; or which calls do;
    - `takes_indices`: it takes CPU tensors beside those of the device: indices;
    - `takes_lengths`: its whole numbers stay on the CPU;

    Of the CPU's kernel, which forecasts of memory stand on:
    - `workspace`: what it keeps beside its results: "elements", the loss of each, "states" of a recurrent
      layer, or the "reserve" of cuDNN's.
    """

    kind: str = ""
    flops: Formula | None = None
    price: Callable[..., Cost] | None = None
    gathers: bool = False
    overwrites: bool = False
    memory_only: bool = False
    asserts: bool = False
    lacks: Lack | None = None
    cpu_alone: bool = False
    too_wide: str = ""
    alert: Alert | None = None
    waits: bool | Rule = False
    takes_indices: bool = False
    takes_lengths: bool = False
    workspace: str = ""


PLAIN = Row()


def name_of(func: Operator) -> str:
    """Return how an operator is called here: that of others with its namespace, "mylib::mm", as it is not PyTorch's."""
    name = func._overloadpacket.__name__
    return name if func.namespace == "aten" else f"{func.namespace}::{name}"


def row_of(func: Operator) -> Row:
    """Return the row of an operator: that of this overload, else that of its name, else the defaults."""
    name = name_of(func)
    if name in _BY_OVERLOAD:
        name = _BY_OVERLOAD[name].get(func._overloadname, name)
    return ROWS.get(name, PLAIN)


# ---- kinds -----------------------------------------------------------------------------------------------------------
ATTENTION, CONVOLUTIONS, PRODUCTS, NORMS = "attention", "convolutions", "matrix products", "normalisation"
_LIBRARY = (ATTENTION, CONVOLUTIONS, PRODUCTS, NORMS)  # what cuBLAS, cuDNN and their like compute
_ENDS = {  # of a part of the name
    PRODUCTS: ("mm", "dot", "mv", "rnn", "lstm", "gru", "matmul", "linear", "pdist"), NORMS: ("norm",),
}  # fmt: skip
_WORDS = {
    "optimizer": ("_foreach", "_fused"),
    "copies": ("copy_", "clone", "cat", "index", "embedding", "gather", "scatter", "roll", "pad", "stack", "repeat"),
    "reductions": ("sum", "mean", "softmax", "loss", "max", "min", "pool", "cumsum", "var", "argmax", "topk", "sort"),
}


@functools.cache
def kind_of(name: str) -> str:
    """Return which kind of operators one belongs to, such as "matrix products": by its row, else by its name."""
    return ROWS.get(name, PLAIN).kind or next(_kinds_by_name(name), "element by element")


def _kinds_by_name(name: str) -> Iterator[str]:
    """Yield the kinds whose words are in a name."""
    if "attention" in name:
        yield ATTENTION
    if "convolution" in name or {"conv", "conv2d", "conv3d"}.intersection(name.split("_")):
        yield CONVOLUTIONS
    for kind, ends in _ENDS.items():
        if any(part.endswith(ends) for part in name.split("_")):
            yield kind
    for kind, words in _WORDS.items():
        if any(word in name for word in words):
            yield kind


def takes_host_long(name: str) -> bool:
    """Return whether an operator takes the host as long as one of a library.

    So do messages between ranks, and operators of others than PyTorch, whose names have "::".
    """
    light = kind_of(name) == "optimizer" or name.startswith("_foreach_") or "vector_norm" in name
    return not light and (is_library(name) or "::" in name or name == "record_param_comms")


def is_library(name: str) -> bool:
    """Return whether an operator is one of a library, which takes the host longer to start than a light one."""
    return kind_of(name) in _LIBRARY


# ---- rows ------------------------------------------------------------------------------------------------------------
def _row(names: str, **columns: Any) -> dict[str, Row]:
    """Return the same row for operators by their names, which `_table` joins."""
    return dict.fromkeys(names.split(), Row(**columns))


def _table(*rows: dict[str, Row]) -> dict[str, Row]:
    """Return all rows by name. Raises ValueError for an operator that has two."""
    merged: dict[str, Row] = {}
    for row in rows:
        if not merged.keys().isdisjoint(row):
            raise ValueError(f"two rows for {', '.join(merged.keys() & row)}")
        merged |= row
    return merged


def _product(first: int) -> dict[str, Any]:
    """Return the columns of a product of matrices, the first of which stands at this place of the arguments."""
    return {"flops": formulas.product(first), "price": prices.product(first)}


# What waits: the host reads the size of the result or its value. What the docstrings of torch.linalg call synchronizing
# consists of its operators here; linalg_lstsq and cholesky_inverse ask _linalg_check_errors,
# linalg_matrix_exp asks nonzero (BatchLinearAlgebra.cpp, LinearAlgebra.cpp of ATen).
# What CUDA's kernels lack: where `dtypes` and `dtypesIfCUDA` of PyTorch's own database of operators differ
# (torch.testing._internal.common_methods_invocations); the names of kernels: what its dispatch macros are given under
# aten/src/ATen/native/cuda and aten/src/ATen/cudnn.
# For the CPU alone: what PyTorch 2.13's native_functions.yaml has for CPU tensors and not for CUDA's. Attention and
# recurrent layers "for the CPU" are not among them: `device.dispatcher` computes CUDA's by them.
ROWS: dict[str, Row] = _table(
    # products of matrices
    _row("mm", **_product(0), lacks=Lack("addmm_cuda", WHOLE, sparse=of_sparse)),
    _row("bmm", **_product(0), lacks=Lack("baddbmm_cuda", WHOLE, sparse=of_sparse)),
    _row("addmm addmm_", **_product(1), lacks=Lack("addmm_cuda", WHOLE, sparse=of_sparse)),
    _row("baddbmm baddbmm_", **_product(1), lacks=Lack("baddbmm_cuda", WHOLE)),
    _row("addbmm addbmm_", **_product(1), lacks=Lack("addmm_cuda", WHOLE)),
    _row("_addmm_activation", **_product(1)),
    _row("_int_mm _scaled_mm_v2", **_product(0)),
    _row(
        "_weight_int4pack_mm _weight_int4pack_mm_with_scales_and_zeros _weight_int8pack_mm",
        flops=formulas.by_result(0),
    ),
    _row("_foreach_mm", flops=formulas.list_product),
    _row("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2", flops=formulas.grouped_product),
    _row("_cdist_forward _euclidean_dist", kind=PRODUCTS, flops=formulas.distances(0)),
    _row("_cdist_backward", kind=PRODUCTS, flops=formulas.distances(1)),
    _row("_pdist_forward", flops=formulas.pairs(0)),
    _row("_pdist_backward", flops=formulas.pairs(1)),
    _row("_mixed_dtypes_linear", flops=formulas.by_result(0)),
    _row("mv addmv addmv_", lacks=Lack("addmv_impl_cuda", WHOLE, sparse=of_sparse)),
    _row(
        "_sparse_addmm hspmm _sparse_sparse_matmul",
        price=prices.unmodelled, lacks=Lack("addmm_cuda", WHOLE, sparse=of_sparse),
    ),
    _row(
        """_cslt_sparse_mm _cslt_sparse_mm_search sparse_sampled_addmm _sparse_semi_structured_addmm
        _sparse_semi_structured_mm _sparse_semi_structured_linear _sparse_mm_reduce_impl_backward
        convolution_backward_overrideable mps_convolution_backward mps_convolution_transpose_backward
        _slow_conv2d_backward _spsolve""",
        price=prices.unmodelled,
    ),
    _row("_trilinear", kind=PRODUCTS, flops=formulas.trilinear, lacks=Lack("baddbmm_cuda", WHOLE)),
    _row("dot vdot", lacks=Lack("dot", WHOLE)),
    # convolutions and recurrent layers
    _row("convolution _convolution", price=prices.convolution, lacks=Lack("getCudnnDataTypeFromScalarType()", LONG)),
    _row("convolution_backward", flops=formulas.convolution_backward, price=prices.convolution_backward),
    _row(
        """cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu miopen_convolution
        miopen_convolution_relu miopen_convolution_add_relu miopen_depthwise_convolution mkldnn_convolution
        _mps_convolution _nnpack_spatial_convolution _conv_depthwise2d conv_depthwise3d slow_conv_dilated2d
        slow_conv_dilated3d""",
        flops=formulas.convolution(),
    ),
    _row("conv_tbc", flops=formulas.convolution_in_time),
    _row(
        """cudnn_convolution_transpose miopen_convolution_transpose _mps_convolution_transpose slow_conv_transpose2d
        slow_conv_transpose3d""",
        flops=formulas.convolution(transposed=True),
    ),
    *(
        _row(f"mkldnn_rnn_layer{of}", flops=formulas.recurrent(f"mkldnn_rnn_layer{of}", gradients), workspace=keeps)
        for of, gradients, keeps in (("", 0, "states"), ("_backward", 2, ""))
    ),
    _row(
        "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward",
        kind="element by element",
    ),
    _row("_cudnn_rnn", flops=formulas.recurrent("_cudnn_rnn"), price=prices.recurrent(14, 192), workspace="reserve"),
    _row("_cudnn_rnn_backward", flops=formulas.recurrent("_cudnn_rnn_backward", 2), price=prices.recurrent(18, 128)),
    _row("miopen_rnn", flops=formulas.recurrent("miopen_rnn")),
    _row("miopen_rnn_backward", flops=formulas.recurrent("miopen_rnn_backward", 2)),
    _row("_lstm_mps", flops=formulas.recurrent("_lstm_mps")),
    _row("lstm_mps_backward", flops=formulas.recurrent("lstm_mps_backward", 2)),
    _row("_pack_padded_sequence _pack_padded_sequence_backward", takes_lengths=True),
    # attention
    _row("scaled_dot_product_attention", flops=formulas.attention()),
    # as a compiled program calls them on CUDA
    _row("_scaled_dot_product_flash_attention", flops=formulas.attention(), price=prices.attention(4)),
    _row("_scaled_dot_product_efficient_attention", flops=formulas.attention(), price=prices.attention(6)),
    _row(
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward",
        flops=formulas.attention("_backward"), price=prices.attention(11),
    ),
    _row("_scaled_dot_product_attention_math_for_mps", flops=formulas.attention()),
    _row("_scaled_dot_product_flash_attention_for_cpu", flops=formulas.attention(), price=prices.attention(4)),
    _row(
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        flops=formulas.attention("_backward"), price=prices.attention(7),
    ),
    _row(
        "_transformer_encoder_layer_fwd",
        kind=PRODUCTS, flops=formulas.encoder(1, 3, 5, 14, 16), price=prices.encoder_layer,
    ),
    _row("_native_multi_head_attention _triton_multi_head_attention", flops=formulas.encoder(3, 5, 7)),
    _row("_scaled_dot_product_fused_attention_overrideable _triton_scaled_dot_attention", flops=formulas.attention()),
    _row("_scaled_dot_product_fused_attention_overrideable_backward", flops=formulas.attention("_backward")),
    # norms, softmax
    _row("native_layer_norm _fused_rms_norm", price=prices.layer_norm),
    _row("_softmax _log_softmax", price=prices.softmax(1, 2)),
    _row("_softmax_backward_data _log_softmax_backward_data", price=prices.softmax(2, 1)),
    _row("native_batch_norm native_group_norm", price=prices.norm),
    _row(
        "native_batch_norm_backward native_group_norm_backward native_layer_norm_backward _fused_rms_norm_backward",
        price=prices.norm_backward,
    ),
    # losses
    _row("nll_loss_forward nll_loss_backward nll_loss2d_backward", asserts=True),
    _row(
        "nll_loss2d_forward",
        asserts=True, alert=Alert("nll_loss2d_forward_out_cuda_template", lambda call: call["reduction"] != 0),
    ),
    _row("_ctc_loss_backward", alert=Alert("ctc_loss_backward_gpu")),
    _row("binary_cross_entropy", asserts=True, workspace="elements"),
    _row("mse_loss soft_margin_loss", workspace="elements"),
    _row("smooth_l1_loss", workspace="elements", price=prices.loss_of_pairs),
    _row("huber_loss", price=prices.loss_of_pairs),
    *(
        _row(name, flops=formulas.chunked_loss(name))
        for name in (
            "torch_nn::_linear_cross_entropy_batch_chunked",
            "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
        )
    ),
    # indices
    _row("embedding index_select gather", gathers=True, asserts=True),
    _row("index", gathers=True, asserts=True, takes_indices=True, waits=waiting.picks_by_mask),
    _row(
        "index_put index_put_ _index_put_impl_",
        gathers=True, asserts=True, takes_indices=True, waits=waiting.puts_by_mask,
    ),
    _row("_unsafe_index", asserts=True, takes_indices=True, waits=waiting.picks_by_mask),
    _row("_unsafe_index_put", asserts=True, takes_indices=True, waits=waiting.puts_by_mask),
    _row("scatter_", gathers=True, asserts=True),
    _row(
        """_embedding_bag _embedding_bag_forward_only embedding_bag index_add index_add_ index_copy index_copy_
        index_fill index_fill_ _index_put_impl multinomial scatter scatter_add scatter_add_ take""",
        asserts=True,
    ),
    _row("index_reduce index_reduce_", asserts=True, alert=Alert("index_reduce_cuda")),
    _row("put put_", asserts=True, alert=Alert("put_")),
    _row(
        "scatter_reduce scatter_reduce_",
        asserts=True,
        lacks=Lack("cuda_scatter_gather_base_kernel_func", BOOL, lambda call: call["reduce"] != "sum", of=1),
        alert=Alert("scatter_reduce_cuda", lambda call: call["reduce"] not in ("sum", "mean")),
    ),
    _row(
        "_embedding_bag_backward _embedding_bag_dense_backward",
        lacks=Lack("embedding_bag_backward_cuda_max", BFLOAT16, determinism.takes_greatest, of=1),
        alert=Alert("embedding_bag_backward_cuda_max", determinism.takes_greatest),
    ),
    # what writes without reading, and what only takes memory
    _row("zero_ fill_ copy_", overwrites=True),
    _row("normal_ uniform_ bernoulli_ random_ exponential_", overwrites=True),
    _row("empty empty_like new_empty new_empty_strided empty_strided resize_ set_", memory_only=True),
    _row("record_grad_output_stream", memory_only=True),  # FSDP's, from PyTorch 2.15 on
    # what the host waits for
    _row("equal", waits=True),
    _row("nonzero masked_select allclose _local_scalar_dense is_nonzero _unique2 unique_consecutive", waits=True),
    _row("_linalg_check_errors", waits=True),
    _row(
        """linalg_eig linalg_eigvals _linalg_eigvals _linalg_eigh _linalg_svd linalg_pinv linalg_lstsq cholesky_inverse
        linalg_matrix_exp""",
        price=prices.unmodelled, waits=True,
    ),
    _row(
        "linalg_cholesky_ex linalg_inv_ex linalg_ldl_factor_ex linalg_lu_factor_ex _linalg_solve_ex",
        price=prices.unmodelled, waits=waiting.checks_errors,
    ),
    _row(
        """_cholesky_solve_helper _linalg_det _linalg_slogdet cholesky cholesky_solve geqrf linalg_householder_product
        linalg_ldl_solve linalg_lu linalg_lu_solve linalg_qr linalg_solve_triangular ormqr triangular_solve""",
        price=prices.unmodelled,
    ),
    _row("linspace logspace", waits=waiting.ends_are_tensors),
    _row("normal", waits=lambda call: isinstance(call["std"], torch.Tensor)),
    _row("repeat_interleave", waits=lambda call: call["output_size"] is None),
    _row("segment_reduce", waits=lambda call: not call["unsafe"]),  # reads the least length (SegmentReduce.cpp)
    # sums whose order changes from run to run
    _row("bincount", alert=Alert("_bincount_cuda", lambda call: call["weights"] is not None)),
    _row(
        "median.dim nanmedian.dim",
        too_wide="median() cannot operate on more than 25 dimensions", alert=Alert("median CUDA with indices output"),
    ),
    # pooling, padding, interpolation
    _row("avg_pool3d_backward", alert=Alert("avg_pool3d_backward_cuda")),
    _row("_adaptive_avg_pool2d_backward", alert=Alert("adaptive_avg_pool2d_backward_cuda")),
    _row("_adaptive_avg_pool3d_backward", alert=Alert("adaptive_avg_pool3d_backward_cuda")),
    _row("adaptive_max_pool2d_backward", alert=Alert("adaptive_max_pool2d_backward_cuda")),
    _row("fractional_max_pool2d_backward", alert=Alert("fractional_max_pool2d_backward_cuda")),
    _row("fractional_max_pool3d_backward", alert=Alert("fractional_max_pool3d_backward_cuda")),
    _row("max_unpool2d", alert=Alert("max_unpooling2d_forward_out")),
    _row("max_unpool3d", alert=Alert("max_unpooling3d_forward_out")),
    _row("reflection_pad1d_backward", alert=Alert("reflection_pad1d_backward_out_cuda")),
    _row("reflection_pad2d_backward", alert=Alert("reflection_pad2d_backward_cuda")),
    _row("reflection_pad3d_backward", alert=Alert("reflection_pad3d_backward_out_cuda")),
    _row("upsample_linear1d_backward", alert=Alert("upsample_linear1d_backward_out_cuda")),
    _row("upsample_bilinear2d_backward", alert=Alert("upsample_bilinear2d_backward_out_cuda")),
    _row("_upsample_bilinear2d_aa_backward", alert=Alert("upsample_bilinear2d_aa_backward_out_cuda")),
    _row("upsample_bicubic2d_backward", alert=Alert("upsample_bicubic2d_backward_out_cuda")),
    _row("upsample_trilinear3d_backward", alert=Alert("upsample_trilinear3d_backward_out_cuda")),
    _row("grid_sampler_2d_backward", alert=Alert("grid_sampler_2d_backward_cuda", determinism.without_cudnn)),
    _row("grid_sampler_3d_backward", alert=Alert("grid_sampler_3d_backward_cuda")),
    # number formats that CUDA's kernels lack
    _row(
        "max_pool2d_with_indices", price=prices.pooling, lacks=Lack("max_pool2d_with_indices_out_cuda_frame", WHOLE)
    ),
    _row("max_pool3d_with_indices", price=prices.pooling, lacks=Lack("max_pool3d_with_indices_out_frame", WHOLE)),
    _row("avg_pool2d", price=prices.pooling, lacks=Lack("avg_pool2d_out_cuda_frame", LONG)),
    _row("avg_pool3d", price=prices.pooling, lacks=Lack("avg_pool3d_out_cuda", LONG)),
    _row("upsample_bilinear2d", lacks=Lack("upsample_bilinear2d_out_frame", BYTE)),
    _row("upsample_bicubic2d", lacks=Lack("upsample_bicubic2d_out_frame", BYTE)),
    _row("_upsample_bilinear2d_aa _upsample_bicubic2d_aa", lacks=Lack("upsample_bilinear2d_out_frame", BYTE)),
    _row("native_dropout_backward", lacks=Lack("masked_scale", WHOLE, of=1)),
    _row("linalg_vector_norm norm", lacks=Lack("norm_cuda", COMPLEX_HALF)),
    _row("angle", lacks=Lack("angle_cuda", HALF)),
    _row(
        "histc",
        lacks=Lack("histc", HALF), waits=waiting.limits_unsaid,
        alert=Alert("_histc_cuda with floating point input", lambda call: call["self"].is_floating_point()),
    ),
    _row("igamma igamma_", lacks=Lack("igamma_cuda", HALF)),
    _row("igammac igammac_", lacks=Lack("igammac_cuda", HALF)),
    # for the CPU alone
    _row(
        """_add_relu _add_relu_ _convert_weight_to_int4pack_for_cpu _dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight
        _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _sparse_mm_reduce_impl _spdiags
        _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward _weight_int4pack_mm_for_cpu histogram narrow_copy.out
        slow_conv3d_forward to_mkldnn""",
        cpu_alone=True,
    ),
)  # fmt: skip
_BY_OVERLOAD: dict[str, dict[str, str]] = {}  # rows that are of one overload, by name and overload
for _name in ROWS:
    if "." in _name:
        _BY_OVERLOAD.setdefault(_name.partition(".")[0], {})[_name.partition(".")[2]] = _name
