"""The exercise “A view made contiguous”."""

import math

import torch

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import launch

triton, tl = kernelcheck.triton()


@exercise(
    minutes=12,
    difficulty=2,
    where="the CPU, with every access checked",
    hints=(
        "`out` lies side by side, so each of its elements has three indices: the last one changes fastest.",
        "k = element % size2, j = element // size2 % size1, i = element // (size1 * size2).",
        "Load from x + i * stride0 + j * stride1 + k * stride2, store to out + element, both with element < n.",
    ),
)
def contiguous(x, out, n, size1, size2, stride0, stride1, stride2, BLOCK: tl.constexpr):
    """Copy the view x, of three dimensions and any strides, to `out`, side by side."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = element < n
    i = element // (size1 * size2)
    j = element // size2 % size1
    k = element % size2
    values = tl.load(x + i * stride0 + j * stride1 + k * stride2, mask=inside)
    tl.store(out + element, values, mask=inside)


contiguous.exempt(KERNEL, "scalar empty single huge tiny zero")
contiguous.exempt(KERNEL, "formats default_type number_negative number_large limit second_call unchanged")


@contiguous.checks
def _(case: Case) -> None:
    whole = torch.randn(3, 4, 7)
    repeated = whole[:1].expand(2, 4, 7), whole[..., :1].expand(3, 4, 5)  # with a stride of 0: first, last
    far = torch.randn(80_000).as_strided((2, 3, 150), (70_000, 1, 13))  # 16 bits do not hold its offsets
    many = torch.randn(150, 130, 1).expand(150, 130, 2)  # nor the number of its elements, 8 bits its indices
    for x in (
        whole[..., :2], whole[:, :2, :5], whole.permute(2, 0, 1), whole.transpose(0, 1)[1:3], *repeated, far, many
    ):  # fmt: skip
        out, n, block = torch.full(x.shape, math.nan), x.numel(), 1024 if x is many else 16
        got, report = launch(case, (-(-n // block),), x, out, n, *x.shape[1:], *x.stride(), block, out=1)
        case.equal(got, x.contiguous(), why=f"a view of the shape {tuple(x.shape)} with the strides {x.stride()}")
        why = "neighbours of `out` belong to neighbours of the block"
        case.budget("32-byte sectors stored", report.by_array["out"].sectors, -(-n // 8), why)
