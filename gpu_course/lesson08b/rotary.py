"""The exercise “Rotary embedding, in place”."""

import torch

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import in_blocks, launch

triton, tl = kernelcheck.triton()


@exercise(
    minutes=15,
    difficulty=2,
    where="the CPU, with every access checked",
    hints=(
        "A program has one head of one token: 2 * HALF numbers from x + token * token_stride + head * head_stride on.",
        "Number i of the first half and number i of the second form a point. It turns by position * base ** (-i / "
        "HALF); base ** y is tl.exp2(y * tl.log2(base)).",
        "Load both halves before you store either: first * cos - second * sin, and second * cos + first * sin.",
    ),
)
def rotary(x, positions, token_stride, head_stride, base, HALF: tl.constexpr):
    """Turn the pairs of each head by the angles of its token, in place."""
    token, i = tl.program_id(0), tl.arange(0, HALF)
    x += token * token_stride + tl.program_id(1) * head_stride
    angle = tl.load(positions + token) * tl.exp2(-i / HALF * tl.log2(base))
    first, second = tl.load(x + i), tl.load(x + HALF + i)
    tl.store(x + i, first * tl.cos(angle) - second * tl.sin(angle))
    tl.store(x + HALF + i, second * tl.cos(angle) + first * tl.sin(angle))


rotary.exempt(KERNEL, "scalar empty permuted tiny not_finite")
rotary.exempt(KERNEL, "half bfloat16 double bool complex default_type numbers second_call unchanged")


@rotary.checks
def _(case: Case) -> None:
    for tokens, heads, half, gap, padding in (
        (2, 1, 2, 0, 0), (3, 2, 8, 0, 0), (3, 2, 8, 5, 0), (4, 3, 1, 2, 3), (2, 2, 1, 40_000, 0),
        (130, 1, 1, 0, 0), (1, 130, 1, 0, 0),  # 8 bits hold neither these tokens nor these heads
    ):  # fmt: skip
        whole = torch.randn(tokens, heads * (2 * half + padding) + gap)
        strides = whole.shape[1], 2 * half + padding, 1  # numbers may lie unused behind a head, and behind a token
        x = whole.as_strided((tokens, heads, 2 * half), strides)
        second = 40_001 if half == 1 else 6  # 40,001 * 100 ** 0 is exact, and neither a half nor a number of 16 bits
        positions = torch.tensor(([5, second, 2, 0] * tokens)[:tokens])
        angles = positions[:, None, None] * 100.0 ** (-torch.arange(half).double() / half)
        left, right = x.double().split(half, 2)
        turned = [left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()]
        arguments = x, positions, x.stride(0), x.stride(1), 100.0, half
        got, report = launch(case, (tokens, heads), *arguments, out=0)
        case.equal(got, torch.cat(turned, 2).float(), rtol=1e-4, atol=1e-4, why="each pair is turned by its angle")
        if half > 2:
            in_blocks(case, report, 2 * x.numel())
