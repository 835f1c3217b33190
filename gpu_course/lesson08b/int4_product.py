"""The exercise “A product with four-bit weights”."""

import math

import torch

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import launch

triton, tl = kernelcheck.triton()


@exercise(
    minutes=20,
    difficulty=3,
    where="the CPU, with every access checked",
    hints=(
        "One byte holds two weights that lie K / 2 rows apart: packed & 15 is the upper one, packed >> 4 the lower "
        "one.",
        "Load a square of bytes once, and two squares of x: columns `inner` and columns `inner + half`. Both products "
        "go into one sum.",
        "A weight is (four bits - 8) * scale of its column. Turn the bits into float32 before you subtract 8, and "
        "multiply by the scales once, after the loop.",
    ),
)
def int4_product(x, packed, scales, out, M, N, K, TILE: tl.constexpr):
    """Store x (M, K) times the four-bit weights (K, N) to `out`."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    half = K // 2
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, half, TILE):
        inner = start + tl.arange(0, TILE)
        x_mask = (rows[:, None] < M) & (inner[None, :] < half)
        upper_x = tl.load(x + rows[:, None] * K + inner[None, :], mask=x_mask, other=0.0)
        lower_x = tl.load(x + rows[:, None] * K + half + inner[None, :], mask=x_mask, other=0.0)
        byte_mask = (inner[:, None] < half) & (columns[None, :] < N)
        both = tl.load(packed + inner[:, None] * N + columns[None, :], mask=byte_mask, other=0)
        total += tl.dot(upper_x, (both & 15).to(tl.float32) - 8, input_precision="ieee")
        total += tl.dot(lower_x, (both >> 4).to(tl.float32) - 8, input_precision="ieee")
    total *= tl.load(scales + columns, mask=columns < N, other=0.0)[None, :]
    tl.store(out + rows[:, None] * N + columns[None, :], total, mask=(rows[:, None] < M) & (columns[None, :] < N))


int4_product.exempt(KERNEL, "scalar empty single permuted sliced huge")
int4_product.exempt(KERNEL, "half bfloat16 double bool complex default_type numbers second_call unchanged")


@int4_product.checks
def _(case: Case) -> None:
    for m, n, k, tile in (
        (16, 16, 32, 16),
        (5, 12, 42, 16),
        (20, 29, 34, 16),
        (140, 130, 6, 64),  # 8 bits do not hold these rows and columns
        (3, 5, 600, 64),
    ):
        x, scales = torch.randn(m, k), 0.5 + torch.rand(n)
        scales[1], x[0, 0] = -scales[1], 1e-5
        weights = torch.randint(0, 16, (k, n), dtype=torch.uint8)
        packed, out = weights[: k // 2] | weights[k // 2 :] << 4, torch.full((m, n), math.nan)
        down, across = -(-m // tile), -(-n // tile)  # equal: the text does not say which axis of the grid goes down
        got, report = launch(case, (down, across), x, packed, scales, out, m, n, k, tile, out=3)
        exact = x.double() @ ((weights.double() - 8) * scales.double())
        case.equal(got, exact.float(), rtol=1e-4, atol=1e-3, why="x times (bits - 8) * scale; nan stood there before")
        why = "each byte holds two weights: load it once for each row of tiles"
        case.budget("bytes of the weights loaded", report.by_array["packed"].loaded_bytes, down * packed.numel(), why)
