"""The exercise “Attention in tiles, in cuTile”."""

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
    minutes=30,
    difficulty=3,
    where="the CPU, block by block",
    needs=kernelcheck.tile.why_not,
    hints=(
        "A block has TILE queries, and walks over the tiles of keys with a maximum, a sum and a weighted sum of the "
        "values for each query: ct.full and ct.zeros begin them, with the shape (TILE, 1) or (TILE, HEAD).",
        "ct.mma(queries, ct.transpose(keys), ct.zeros((TILE, TILE), dtype=ct.float32)) is a square of scores. A query "
        "sees the keys up to its own place: ct.where sets all others to -inf. Tile ct.bid(0) is the last to load.",
        "A row beyond the end has no value without padding_mode. Its weight is 0, but 0 times no value is no value: "
        "ask for zeros where you load values. When the maximum grows, both sums shrink by exp(old - new).",
    ),
)
def attention_tiles(q, k, v, out, scale, HEAD: "ct.Constant[int]", TILE: "ct.Constant[int]"):
    """Store causal attention of one head to `out`, TILE queries for each block."""
    block, places, zero = ct.bid(0), ct.arange(TILE, dtype=ct.int32), ct.PaddingMode.ZERO
    queries = ct.load(q, index=(block, 0), shape=(TILE, HEAD), padding_mode=zero)
    rows = (block * TILE + places)[:, None]
    top = ct.full((TILE, 1), -math.inf, dtype=ct.float32)
    total = ct.zeros((TILE, 1), dtype=ct.float32)
    mixed = ct.zeros((TILE, HEAD), dtype=ct.float32)
    for step in range(block + 1):
        keys = ct.load(k, index=(step, 0), shape=(TILE, HEAD), padding_mode=zero)
        values = ct.load(v, index=(step, 0), shape=(TILE, HEAD), padding_mode=zero)
        scores = ct.mma(queries, ct.transpose(keys), ct.zeros((TILE, TILE), dtype=ct.float32)) * scale
        scores = ct.where((step * TILE + places)[None, :] <= rows, scores, -math.inf)
        new_top = ct.maximum(top, ct.max(scores, axis=1, keepdims=True))
        shrink, weights = ct.exp(top - new_top), ct.exp(scores - new_top)
        total = total * shrink + ct.sum(weights, axis=1, keepdims=True)
        mixed = ct.mma(weights, values, mixed * shrink)
        top = new_top
    ct.store(out, index=(block, 0), tile=mixed / total)


attention_tiles.exempt(KERNEL, "scalar empty permuted formats default_type numbers second_call unchanged")


@attention_tiles.checks
def _(case: Case) -> None:
    for length, head, tile, first, last in (  # all scores of a query lie near its own line from first to last
        (16, 16, 16, 0, 0),
        (37, 32, 16, 0, 0),
        (1, 16, 16, 0, 0),  # "With a length of 1, `out` is v."
        (37, 16, 16, -250, -150),
        (37, 16, 16, -120, 120),
        (37, 16, 16, 120, -120),
        (37, 16, 16, -2e7, -1e7),
    ):
        q, k, v = (torch.randn(length, head + 1)[:, :head] for _ in range(3))
        q[:, 0], k[:, 0] = 1, torch.linspace(first, last, length) * math.sqrt(head) / 2
        out, blocks, scale = torch.full((length, head), math.nan), -(-length // tile), 2 / math.sqrt(head)
        got, report = launch_tiles(case, (blocks,), q, k, v, out, scale, head, tile, out=3)
        exact = F.scaled_dot_product_attention(
            *(tensor.double()[None, None] for tensor in (q, k, v)), is_causal=True, scale=scale
        )
        case.equal(got, exact[0, 0].float(), rtol=1e-3, atol=1e-4, why="causal attention; nan stood there before")
        seen = sum(min((block + 1) * tile, length) for block in range(blocks))
        why = "queries once; for each block the keys and values up to its last query"
        case.budget("bytes loaded", report.loaded_bytes, 4 * head * (length + 2 * seen), why)
