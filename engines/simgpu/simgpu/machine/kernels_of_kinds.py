"""Operators of PyTorch without a kernel on MPS or XPU, and what happens there.

For MPS it is derived from the table of operators that PyTorch brings along (`native_functions.yaml` in torchgen): those
that have a kernel for the CPU or CUDA, none for MPS, and are not made of others; and those made of one of these, which
writes into `out` or in place, such as `logspace`. `MPSFallback.mm` in aten/src/ATen/mps gives the CPU's kernel to a
few. XPU's kernels were registered in another repository until June 2026, so that PyTorch 2.13's table has few of them:
the two lists here are what was left of CUDA's there (`yaml/native/native_functions.yaml` and `XPUFallback.template` of
https://github.com/intel/torch-xpu-ops, commit a82cdea6f, 2026-05-15).
"""

import functools
import re
from importlib import resources
from typing import NamedTuple

_OPERATOR, _FIELD, _KERNEL = (
    re.compile(pattern) for pattern in (r"- func: ([\w.]+)\(", r"  (\w+):\s*(.*)", r"    ([\w, ]+):\s*\S")
)
_EXPLICIT = {"CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}
_MADE_OF_OTHERS = {"CompositeImplicitAutograd", *_EXPLICIT}
_ON_THE_CPU = {  # by kind: operators that run on the CPU whatever a program has set
    "mps": "embedding_renorm_ linalg_svd col2im upsample_nearest3d.vec",
    "xpu": """cholesky cholesky_inverse _cholesky_solve_helper _efficient_attention_forward geqrf hash_tensor
    linalg_cholesky_ex linalg_eig _linalg_eigvals linalg_eigvals _linalg_eigh linalg_householder_product
    linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_matrix_exp linalg_qr _linalg_svd lu_unpack
    ormqr triangular_solve _validate_compressed_sparse_indices""",
}
_OF_THE_CPU = """mkldnn_rnn_layer mkldnn_rnn_layer_backward _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward"""  # by which the simulated GPU computes what MPS has
_XPU_LACKS = """sspaddmm _scaled_grouped_mm _scaled_grouped_mm_v2 _to_sparse_semi_structured _fused_adagrad_
_cslt_compress _cslt_sparse_mm _sparse_semi_structured_linear _mixed_dtypes_linear"""


class _Entry(NamedTuple):
    """What the table says of an operator: the dispatch keys of its kernels, and the operator that computes it."""

    keys: set[str]
    delegate: str


@functools.cache
def _table() -> dict[str, _Entry]:
    """Return PyTorch's table of operators by their names with overloads, such as "add.Tensor"."""
    file = resources.files("torchgen") / "packaged/ATen/native/native_functions.yaml"
    table: dict[str, _Entry] = {}
    name = field = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if begins := _OPERATOR.match(line):
            name, field = begins[1], ""
            table[name] = _Entry(set(), "")
        elif name and (begins := _FIELD.match(line)):
            field = begins[1]
            if field == "structured_delegate":
                table[name] = _Entry(table[name].keys, begins[2].strip())
        elif field == "dispatch" and (kernel := _KERNEL.match(line)):
            table[name].keys.update(key.strip() for key in kernel[1].split(","))
    return table


@functools.cache
def without_kernel(kind: str) -> dict[str, str]:
    """Return the operators without a kernel on a `kind`, by name with overload: as which its message calls each."""
    table = _table()
    if kind == "xpu":
        return {name: named(name) for name in table if name.partition(".")[0] in _XPU_LACKS.split()}
    if kind != "mps":
        return {}
    keys = {name: one.keys | (table[one.delegate].keys if one.delegate else set()) for name, one in table.items()}
    made = {name for name, one in table.items() if one.keys & _MADE_OF_OTHERS or not (one.keys or one.delegate)}
    missing = {one: named(one) for one in table.keys() - made if keys[one] & {"CPU", "CUDA"} and "MPS" not in keys[one]}
    for name in [name for name in missing if name.partition(".")[0] in _OF_THE_CPU.split()]:
        del missing[name]
    for name, one in table.items():
        base = name.partition(".")[0]
        others = [other for other in (base, f"{base}_", *_overloads(base)) if other in table]
        if name in missing or not one.keys & _EXPLICIT or any("MPS" in keys[other] for other in others):
            continue
        behind = [missing[other] for other in others if "CUDA" in keys[other] and other in missing]
        missing |= dict.fromkeys([name], behind[0]) if behind else {}
    return missing


@functools.cache
def _overloads(base: str) -> tuple[str, ...]:
    return tuple(name for name in _table() if name.startswith(f"{base}."))


def named(name: str) -> str:
    """Return as which operator a device without a kernel calls one: where PyTorch has generated it, that behind it."""
    entry = _table().get(name)
    return entry.delegate if entry is not None and entry.delegate else name


@functools.cache
def on_the_cpu(kind: str) -> frozenset[str]:
    """Return the operators of a `kind` that always run on the CPU, by name, one overload's with it."""
    return frozenset(_ON_THE_CPU.get(kind, "").split())
