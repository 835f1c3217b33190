"""The exercise “A gate, in cuTile”."""

import math

import torch
import torch.nn.functional as F

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import launch_tiles

if not kernelcheck.tile.why_not():
    import cuda.tile as ct


@exercise(
    minutes=10,
    difficulty=2,
    where="the CPU, block by block",
    needs=kernelcheck.tile.why_not,
    hints=(
        "ct.bid(0) and ct.bid(1) are the tile's row and column: ct.load(gate, index=(i, j), shape=(TILE, TILE)).",
        "tile.astype(ct.float32) converts a tile. Convert both before you compute, and the result at the end.",
        "silu(g) is g / (1 + ct.exp(-g)). ct.store(out, index=(i, j), tile=result.astype(out.dtype)).",
    ),
)
def gated_tiles(gate, up, out, TILE: "ct.Constant[int]"):
    """Store silu(gate) * up to `out`, a TILE x TILE tile for each block."""
    i, j = ct.bid(0), ct.bid(1)
    g = ct.load(gate, index=(i, j), shape=(TILE, TILE)).astype(ct.float32)
    u = ct.load(up, index=(i, j), shape=(TILE, TILE)).astype(ct.float32)
    ct.store(out, index=(i, j), tile=(g / (1 + ct.exp(-g)) * u).astype(out.dtype))


gated_tiles.exempt(KERNEL, "scalar empty huge")
gated_tiles.exempt(KERNEL, "whole bfloat16 double bool complex default_type numbers second_call unchanged")


@gated_tiles.checks
def _(case: Case) -> None:
    for rows, columns, tile in ((4, 8, 4), (20, 37, 16), (1, 1, 2), (9, 3, 8), (300, 5, 2)):  # 8 bits: 128 rows
        both = torch.randn(rows, 2 * columns).half()
        both[0, 0], both[-1, columns - 1] = -12, 0  # exp(12) is beyond 16 bits
        gate, up = both[:, :columns], both[:, columns:]
        out = torch.full((columns, rows), math.nan).half().t()  # column by column: strides are the compiler's
        grid = -(-rows // tile), -(-columns // tile)
        got, report = launch_tiles(case, grid, gate, up, out, tile, out=2)
        exact = F.silu(gate.double()) * up.double()
        why = "silu(gate) * up, rounded once; nan stood there before"  # half of the last bit of 11: 0.00049
        case.equal(got.double(), exact, rtol=5e-4, atol=1e-7, why=why)
        case.budget("bytes loaded", report.loaded_bytes, 4 * gate.numel(), "gate and up: each number once")
