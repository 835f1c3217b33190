"""The exercise “Attention in blocks”."""

import math

import torch
import torch.nn.functional as F

import kernelcheck
from gpu_course.checks import Case, edit, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import launch

triton, tl = kernelcheck.triton()


@exercise(
    title="Attention in blocks",
    minutes=30,
    difficulty=3,
    where="the CPU, with every access checked",
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


attention.exempt(KERNEL, "scalar empty permuted sliced formats default_type numbers second_call unchanged")


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
