"""Attention in blocks, and a product with weights of four bits: is every number loaded once, and is the sum right?"""

import math

import torch
import torch.nn.functional as F

import kernelcheck
from gpu_course.checks import Case, edit, lesson
from gpu_course.common.launching import launch
from gpu_course.common.left_out import KERNEL

triton, tl = kernelcheck.triton()
exercise = lesson("08b")
WHERE = "the CPU, with every access checked"


@exercise(
    title="Attention in blocks",
    minutes=30,
    difficulty=3,
    where=WHERE,
    hints=(
        "A program has BLOCK queries, and walks over the keys in steps of BLOCK with a maximum, a sum and a weighted "
        "sum of the values for each query: tl.full and tl.zeros begin them.",
        "tl.dot(queries, tl.trans(keys)) gives a square of scores. A query sees the keys up to its own place: set all "
        "others to -inf by tl.where. Behind the program's own queries no key is seen, so the walk ends there.",
        "When the maximum grows, both the sum and the weighted values so far shrink by exp(old - new): that factor is "
        "one number a query, so it needs [:, None] for the values. Divide by the sum after the loop.",
    ),
)
def attention(q, k, v, out, length, scale, HEAD: tl.constexpr, BLOCK: tl.constexpr):
    """Store causal attention of one head to `out`, BLOCK queries for each program."""
    side, lanes = tl.arange(0, BLOCK), tl.arange(0, HEAD)
    rows = tl.program_id(0) * BLOCK + side
    own_elements = rows[:, None] * HEAD + lanes[None, :]
    queries = tl.load(q + own_elements, mask=rows[:, None] < length, other=0.0)
    top = tl.full((BLOCK,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    mixed = tl.zeros((BLOCK, HEAD), dtype=tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BLOCK, BLOCK):
        others = start + side
        other_elements = others[:, None] * HEAD + lanes[None, :]
        keys = tl.load(k + other_elements, mask=others[:, None] < length, other=0.0)
        values = tl.load(v + other_elements, mask=others[:, None] < length, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(others[None, :] <= rows[:, None], scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        mixed = mixed * shrink[:, None] + tl.dot(weights, values, input_precision="ieee")
        top = new_top
    tl.store(out + own_elements, mixed / total[:, None], mask=rows[:, None] < length)


attention.alternative(
    "tl.dot adds to an accumulator itself: the order of the factors is harder to see",
    edit("""
        -        mixed = mixed * shrink[:, None] + tl.dot(weights, values, input_precision="ieee")
        +        mixed = tl.dot(weights, values, acc=mixed * shrink[:, None], input_precision="ieee")
    """),
)


attention.leaves_out(KERNEL, "scalar empty permuted sliced formats default_type numbers second_call unchanged")


@attention.checks
def _(case: Case) -> None:
    for length, head, block, first, last in (  # all scores of a query lie near its own line from first to last
        (16, 16, 16, 0, 0),
        (37, 32, 16, 0, 0),
        (1, 16, 16, 0, 0),  # "With a length of 1, `out` is v."
        (37, 16, 16, -250, -150),
        (37, 16, 16, -120, 120),
        (37, 16, 16, 120, -120),
        (37, 16, 16, -2e7, -1e7),
    ):
        q, k, v = (torch.randn(length, head) for _ in range(3))
        q[:, 0], k[:, 0] = 1, torch.linspace(first, last, length) * math.sqrt(head) / 2
        out, programs, scale = torch.full((length, head), math.nan), -(-length // block), 2 / math.sqrt(head)
        got, report = launch(case, (programs,), q, k, v, out, length, scale, head, block, out=3)
        exact = F.scaled_dot_product_attention(
            *(tensor.double()[None, None] for tensor in (q, k, v)), is_causal=True, scale=scale
        )
        case.equal(got, exact[0, 0].float(), rtol=1e-3, atol=1e-4, why="causal attention; nan stood there before")
        seen = sum(min((program + 1) * block, length) for program in range(programs))
        case.budget(
            "bytes loaded",
            report.loaded_bytes,
            4 * head * (length + 2 * seen),
            "queries once; for each program the keys and values up to its last query",
        )


@exercise(
    title="A product with four-bit weights",
    minutes=20,
    difficulty=3,
    where=WHERE,
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


int4_product.alternative(
    "tl.dot adds to an accumulator itself: one name more in each line",
    edit("""
        -        total += tl.dot(upper_x, (both & 15).to(tl.float32) - 8, input_precision="ieee")
        +        total = tl.dot(upper_x, (both & 15).to(tl.float32) - 8, acc=total, input_precision="ieee")
    """),
)


int4_product.leaves_out(
    KERNEL,
    "scalar empty single permuted sliced huge half bfloat16 double bool complex",
    "default_type numbers second_call unchanged",
)


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
        case.budget(
            "bytes of the weights loaded",
            report.by_array["packed"].loaded_bytes,
            down * packed.numel(),
            "each byte holds two weights: load it once for each row of tiles",
        )
