"""Is what there is to know of an operator said once, of operators that exist, and used by all that need it?"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from simgpu import flops
from simgpu.ground import composite
from simgpu.machine import operator_table
from simgpu.machine.operator_table import ATTENTION, CONVOLUTIONS, PRODUCTS, ROWS, is_library, kind_of, name_of, row_of
from simgpu.machine.prices import unmodelled

NEWER = {
    "_foreach_mm",
    "_upsample_lanczos2d_aa",
    "_upsample_lanczos2d_aa_backward",
    "record_grad_output_stream",
}  # not in every PyTorch
OTHERS = "torch_nn::"  # are defined when their module is imported


def test_each_row_is_of_an_operator_that_pytorch_has():
    known = {schema.name for schema in torch._C._jit_get_all_schemas()}
    names = {name.partition(".")[0] for name in ROWS if not name.startswith(OTHERS)} - NEWER
    assert len(names) > 150
    assert {name for name in names if f"aten::{name}" not in known} == set()
    assert torch.ops.aten.narrow_copy.out is not None and "narrow_copy.out" in ROWS


def test_an_operator_has_one_row():
    with pytest.raises(ValueError, match="two rows for mm"):
        operator_table._table(operator_table._row("mm", waits=True), operator_table._row("bmm mm", asserts=True))


def test_a_row_of_one_overload_is_not_that_of_the_others():
    assert row_of(torch.ops.aten.narrow_copy.out).cpu_alone
    assert not row_of(torch.ops.aten.narrow_copy.default).cpu_alone


def test_an_operator_of_others_is_not_taken_for_pytorchs_of_the_same_name():
    library = torch.library.Library("tableofothers", "FRAGMENT")
    library.define("mm(Tensor a, Tensor b) -> Tensor")
    func = torch.ops.tableofothers.mm.default
    assert operator_table.name_of(func) == "tableofothers::mm" and row_of(func) is operator_table.PLAIN


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("addmm_", "matrix products"), ("_weight_int4pack_mm", "matrix products"), ("gru_cell", "matrix products"),
        ("_transformer_encoder_layer_fwd", "matrix products"), ("native_layer_norm_backward", "normalisation"),
        ("_scaled_dot_product_flash_attention", "attention"), ("convolution", "convolutions"),
        ("lgamma", "element by element"), ("cummax", "reductions"), ("normal_", "element by element"),
    ],
)  # fmt: skip
def test_kinds_are_told_by_whole_words(name, kind):
    assert kind_of(name) == kind
    assert is_library(name) == (kind in ("matrix products", "normalisation", "attention", "convolutions"))


_NO_FORMULA = {  # why a product or attention has no formula and needs none
    "reads each number once, so that the memory decides": "mv addmv addmv_ dot vdot",
    "lays weights out anew": "_cudnn_rnn_flatten_weight mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight",
    "runs inside kernels, or on nested tensors": """_cudnn_attention_forward _cudnn_attention_backward
        _flash_attention_forward_no_dropout_inplace _compute_linear_combination linear_backward matmul_backward""",
    "for the CPU alone, or refused on CUDA": """_sparse_mm_reduce_impl _weight_int4pack_mm_for_cpu quantized_gru
        quantized_lstm _dyn_quant_matmul_4bit mkldnn_linear mkldnn_linear_backward mkldnn_linear_backward_input
        mkldnn_linear_backward_weights slow_conv3d_forward""",
}
_NO_FACTORISATION = ["linalg__powsum", "linalg_cross", "linalg_vector_norm", "_linalg_check_errors"]


def own_kernels():
    """Yield the operators of PyTorch that are not made of others, but for those that write into `out`."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and hasattr(torch.ops.aten, packet) and not overload.endswith("out"):
            func = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if not composite.is_composite(func):
                yield func


def test_what_computes_products_has_a_formula_or_the_reason_why_not():
    excused = {name for names in _NO_FORMULA.values() for name in names.split() if hasattr(torch.ops.aten, name)}
    found = {func for func in own_kernels() if kind_of(name_of(func)) in (PRODUCTS, CONVOLUTIONS, ATTENTION)}
    lacking = {name_of(func) for func in found if not (flops.formula_of(func) or row_of(func).price is unmodelled)}
    assert len(found) > 80 and lacking == excused


def test_a_factorisation_is_labelled_as_not_modelled():
    found = {func for func in own_kernels() if "linalg_" in name_of(func) or "cholesky" in name_of(func)}
    lacking = {name_of(func) for func in found if row_of(func).price is not unmodelled}
    assert len(found) > 25 and lacking == {name for name in _NO_FACTORISATION if hasattr(torch.ops.aten, name)}
    grouped = lambda: nn.ConvTranspose1d(4, 4, 1, groups=2)  # noqa: E731
    ahead = simgpu.forecast(grouped, lambda: torch.eye(4), step=lambda model, x, _: model(torch.linalg.inv(x))).on("T4")
    bounds = {record.name: record.bound for record in ahead.kernels}
    assert bounds["linalg_inv_ex"] == bounds["convolution"] == "not modelled" and ahead.by_bound["not modelled"] > 0
    assert "not modelled, so timed as the least they can take: linalg_inv_ex" in ahead.caption()


@pytest.mark.parametrize(("name", "shapes", "more", "products"), [
    ("addbmm", [(3, 5), (2, 3, 4), (2, 4, 5)], (), 2 * 3 * 4 * 5),
    ("_addmm_activation", [(5,), (3, 4), (4, 5)], (), 3 * 4 * 5),
    ("_grouped_mm", [(2, 3, 4), (2, 4, 5)], (), 2 * 3 * 4 * 5), ("_grouped_mm", [(6, 4), (2, 4, 5)], (), 6 * 4 * 5),
    ("_grouped_mm", [(2, 3, 4), (4, 6)], (), 3 * 4 * 6), ("_grouped_mm", [(3, 6), (6, 5)], (), 3 * 6 * 5),
    ("_trilinear", [(7, 3), (5, 3, 4), (7, 4)], ([1, 3], [0], [1, 2], [2, 3]), 7 * 5 * 3 * 4),
    ("_cdist_forward", [(7, 3), (5, 3)], (2.0, None), 7 * 5 * 3),
    ("_cdist_backward", [(7, 5), (7, 3), (5, 3)], (2.0, None), 7 * 5 * 3),
    ("_pdist_forward", [(7, 3)], (2.0,), 7 * 6 // 2 * 3), ("_pdist_backward", [(21,), (7, 3)], (2.0,), 7 * 6 // 2 * 3),
    ("cudnn_convolution_transpose", [(2, 3, 4, 4), (3, 5, 2, 2)], (), 2 * 4 * 4 * 3 * 5 * 2 * 2),
])  # fmt: skip
def test_a_formula_counts_each_product_once(name, shapes, more, products):
    func = getattr(torch.ops.aten, name).default
    assert flops.of_call(func, (*map(torch.empty, shapes), *more), {}, None) == 2 * products


def test_packed_weights_and_lists_have_formulas_too():
    x, packed, y = torch.empty(3, 16), torch.empty(1), torch.empty(3, 5)
    assert flops.of_call(torch.ops.aten._weight_int4pack_mm.default, (x, packed, 16, packed), {}, y) == 2 * 3 * 16 * 5
    pairs = [x, torch.empty(2, 16)], [torch.empty(16, 5), torch.empty(16, 5)]
    if hasattr(torch.ops.aten, "_foreach_mm"):
        assert flops.of_call(torch.ops.aten._foreach_mm.default, pairs, {}, None) == 2 * (3 + 2) * 16 * 5


def grouped(device):
    x = torch.ones(2, 4, 8, 8, device=device, requires_grad=True)
    nn.Conv2d(4, 8, 3, groups=4, device=device)(x).sum().backward()


def recurrent(device):
    nn.LSTM(4, 8).to(device)(torch.ones(3, 2, 4, device=device))[0].sum().backward()


def attention(device):
    x = torch.ones(1, 2, 8, 4, device=device, requires_grad=True)
    F.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()


def encoder(device):
    with torch.inference_mode():
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(device).eval()(torch.ones(2, 5, 8, device=device))


@pytest.mark.parametrize("program", [grouped, recurrent, attention, encoder])
def test_who_counts_operations_and_the_clock_have_the_same_formulas(program):
    counting = pytest.importorskip("course_utils.counting")  # which an engine installed alone has not
    simgpu.enable()
    with counting.count() as counts, simgpu.timeline() as timeline:
        program(torch.device("sim"))
    with counting.count() as on_the_cpu:
        program(torch.device("cpu"))
    products = [record for record in timeline.select("kernel") if kind_of(record.name) in ("matrix products",
                "convolutions", "attention")]  # fmt: skip
    assert products and sum(record.flops for record in products) == counts.flops == on_the_cpu.flops > 0


def test_half_of_the_groups_are_half_of_the_operations():
    """PyTorch's own formula of this backward pass leaves them out of account."""
    x, weight = torch.ones(1, 4, 8, 8), torch.ones(6, 2, 3, 3)
    y = F.conv2d(x, weight, groups=2)
    func = torch.ops.aten.convolution_backward.default
    args = y, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 2, [True, True, False]
    forward = flops.of_call(torch.ops.aten.convolution.default, (x, weight, None, *args[4:10]), {}, y)
    assert flops.of_call(func, args, {}, func(*args)) == 2 * forward == 2 * (2 * y.numel() * 2 * 9)
