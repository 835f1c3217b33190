"""The exercise “A product in tiles”."""

import math

import torch

import kernelcheck
from gpu_course.checks import Case, edges, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import launch

triton, tl = kernelcheck.triton()


@exercise(
    minutes=25,
    difficulty=3,
    where="the CPU, with every access checked",
    hints=(
        "A program has a tile of `out`: TILE rows from program_id(0) * TILE on, TILE columns from program_id(1) * TILE "
        "on. It walks along K in steps of TILE.",
        "rows[:, None] * a_row + inner[None, :] * a_column is a square of addresses; its mask needs both sizes, M and "
        "K, and what it leaves out must count as 0 in the product.",
        "Start with tl.zeros in float32. In each step load a square of a and one of b, and add tl.dot of them. The "
        "store comes after the loop, once, with a mask of M and N; a row of `out` has N elements.",
    ),
)
def matmul_tiles(a, b, out, M, N, K, a_row, a_column, b_row, b_column, TILE: tl.constexpr):
    """Store a (M, K) times b (K, N) to `out`, a TILE x TILE square for each program."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, TILE):
        inner = start + tl.arange(0, TILE)
        left_mask = (rows[:, None] < M) & (inner[None, :] < K)
        left = tl.load(a + rows[:, None] * a_row + inner[None, :] * a_column, mask=left_mask, other=0.0)
        right_mask = (inner[:, None] < K) & (columns[None, :] < N)
        right = tl.load(b + inner[:, None] * b_row + columns[None, :] * b_column, mask=right_mask, other=0.0)
        total += tl.dot(left, right, input_precision="ieee")  # float32, not tf32
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(out + rows[:, None] * N + columns[None, :], total, mask=mask)


matmul_tiles.exempt(KERNEL, "scalar empty huge zero tied formats default_type numbers second_call unchanged")


@matmul_tiles.checks
def _(case: Case) -> None:
    for m, n, k, tile, laid_out in (
        (16, 16, 16, 16, torch.clone),
        (16, 32, 48, 16, torch.clone),
        (20, 37, 41, 16, torch.clone),
        (37, 20, 23, 16, edges.permuted),
        (20, 37, 41, 32, torch.clone),
        (1, 1, 1, 16, torch.clone),
        (3, 33, 17, 16, edges.permuted),
        (18, 19, 20, 16, edges.sliced),
        (3, 300, 150, 64, torch.clone),  # 8 bits do not hold these columns, nor the places along K
    ):
        a, b, out = laid_out(torch.randn(m, k)), laid_out(torch.randn(k, n)), torch.full((m, n), math.nan)
        down, across = -(-m // tile), -(-n // tile)
        got, report = launch(case, (down, across), a, b, out, m, n, k, *a.stride(), *b.stride(), tile, out=2)
        why = "a times b; nan stood there before"
        case.equal(got, (a.double() @ b.double()).float(), rtol=1e-4, atol=1e-4, why=why)
        least = 4 * down * across * 2 * tile * k  # at an edge a program may read what lies inside again
        why = "a program needs each tile of its rows of a and of its columns of b once"
        case.budget("bytes loaded from global memory", report.loaded_bytes, least, why)
        case.budget("bytes stored", report.stored_bytes, 4 * out.numel(), "the sum stays in registers until it is done")
