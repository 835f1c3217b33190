"""A scan, the largest numbers of a row, and rotary embedding: what do the places of a row owe one another?"""

import math

import torch

import kernelcheck
from gpu_course.checks import Case, edit, lesson
from gpu_course.common.launching import in_blocks, launch
from gpu_course.common.left_out import KERNEL

triton, tl = kernelcheck.triton()
exercise = lesson("08b")
WHERE = "the CPU, with every access checked"


@triton.jit
def after(a, b, next_a, next_b):
    """Return the step h -> next_a * (a * h + b) + next_b as one step: its factor and its summand."""
    return a * next_a, b * next_a + next_b


@exercise(
    title="A scan with a state",
    minutes=18,
    difficulty=3,
    where=WHERE,
    hints=(
        "tl.associative_scan((decay, added), 0, after) returns two blocks: place t holds the factor and the summand of "
        "all steps of the block up to t, taken together.",
        "That scan begins each block with the state 0. A block that begins with the state h adds factor * h to its "
        "places.",
        "The state at the end of a block is its last place. With 1 and 0 where the mask is off, steps there change "
        "nothing, so tl.sum(tl.where(at == start + BLOCK - 1, states, 0.0), axis=0) picks it.",
    ),
)
def linear_scan(a, b, out, columns, BLOCK: tl.constexpr):
    """Store h[t] = a[t] * h[t - 1] + b[t] of each row to `out`, beginning with 0."""
    row = tl.program_id(0) * columns
    state = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        decay = tl.load(a + row + column, mask=inside, other=1.0)
        added = tl.load(b + row + column, mask=inside, other=0.0)
        factors, states = tl.associative_scan((decay, added), 0, after)
        states += factors * state
        tl.store(out + row + column, states, mask=inside)
        state = tl.sum(tl.where(column == start + BLOCK - 1, states, 0.0), axis=0)


linear_scan.alternative(
    "the state enters with the first step of the block: no factors are needed behind the scan",
    edit("""
        -        factors, states = tl.associative_scan((decay, added), 0, after)
        -        states += factors * state
        +        added += tl.where(column == start, decay * state, 0.0)
        +        _, states = tl.associative_scan((decay, added), 0, after)
    """),
)


linear_scan.leaves_out(
    KERNEL, "scalar empty permuted sliced huge tiny tied formats default_type numbers second_call unchanged"
)


@linear_scan.checks
def _(case: Case) -> None:
    for rows, columns, block, larger in ((1, 4, 8, 1), (2, 8, 8, 1), (2, 21, 8, 1), (1, 24, 8, 5)):
        a, b = larger * torch.randn(rows, columns), torch.randn(rows, columns)  # 5: the states grow beyond 16 bits
        out = torch.full((rows, columns), math.nan)
        a[0, 2], a[-1, 1] = 0, 1.001  # 0 forgets all before; half precision cannot hold 1.001
        expected, state = torch.empty(rows, columns), torch.zeros(rows).double()
        for t in range(columns):
            expected[:, t] = state = a[:, t] * state + b[:, t]
        got, report = launch(case, (rows,), a, b, out, columns, block, out=2)
        case.equal(got, expected, rtol=1e-4, atol=1e-5, why="h[t] = a[t] * h[t - 1] + b[t]; nan stood there before")
        case.budget("bytes loaded", report.loaded_bytes, 8 * a.numel(), "a and b: each number once")
        in_blocks(case, report, 3 * a.numel())


@exercise(
    title="The largest numbers of a row",
    minutes=12,
    difficulty=2,
    where=WHERE,
    hints=(
        "tl.argmax(values, axis=0) gives the place of the largest, and of equal ones the first.",
        "Store that place, then take this one number out of the running: by tl.where, at its place alone.",
        "for number in tl.static_range(K): argmax, store to out + row * K + number, set values there to -inf.",
    ),
)
def top_k(x, out, columns, x_stride, K: tl.constexpr, BLOCK: tl.constexpr):
    """Store the places of the K largest numbers of each row, largest first."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * x_stride + column, mask=column < columns, other=-float("inf"))
    for number in tl.static_range(K):
        best = tl.argmax(values, axis=0)
        tl.store(out + row * K + number, best)
        values = tl.where(column == best, -float("inf"), values)


top_k.alternative(
    "tl.max returns place and number together: for kernels that store both",
    edit("""
        -        best = tl.argmax(values, axis=0)
        +        _, best = tl.max(values, axis=0, return_indices=True)
    """),
)


top_k.leaves_out(
    KERNEL, "scalar empty permuted tiny half bfloat16 double bool complex default_type numbers second_call unchanged"
)


@top_k.checks
def _(case: Case) -> None:
    for rows, columns, gap, k, block, high in ((1, 5, 0, 2, 8, 0), (3, 8, 3, 3, 8, 0), (2, 27, 0, 4, 32, 9)):
        x = torch.randint(-9, high, (rows, columns + gap)).float()[:, :columns]
        x[0, 3] = x[0, 1] = -0.5  # equal ones
        out = torch.full((rows, k), -1, dtype=torch.int32)
        got, report = launch(case, (rows,), x, out, columns, columns + gap, k, block, out=1)
        expected = x.sort(dim=1, descending=True, stable=True).indices[:, :k].int()
        case.equal(got, expected, why="places of the largest numbers; of equal ones the first comes first")
        case.budget("bytes loaded", report.loaded_bytes, 4 * x.numel(), "the row stays in the block")
    many, wide = torch.randn(130, 2), torch.randn(80_000).as_strided((2, 200), (40_000, 1))
    wide[:, 150] = 9.0
    for x, block in ((many, 2), (wide, 256)):  # more rows, and a larger place, than 8 bits hold; rows 40,000 apart
        rows, columns = x.shape
        got, _ = launch(case, (rows,), x, torch.full((rows, 1), -1).int(), columns, x.stride(0), 1, block, out=1)
        why = f"the place of the largest of {columns} numbers, in {rows} rows"
        case.equal(got, x.argmax(dim=1, keepdim=True).int(), why=why)
    for row in _NUMBERS:
        x, out = torch.tensor([row]), torch.full((1, len(row)), -1, dtype=torch.int32)
        got, _ = launch(case, (1,), x, out, len(row), len(row), len(row), 8, out=1)
        expected = x.sort(dim=1, descending=True, stable=True).indices.int()
        case.equal(got, expected, why=f"the row {row}: any number but -inf may stand there")


_NUMBERS = (  # all places are asked for: whoever takes a number out must not let it come back
    [-3e38, -2e9, -3.3e38, -1e9, -2e9],
    [0.3, 0.7, 0.1, 0.30001, 1.2, 0.7],
    [70_001.0, math.inf, 70_002.0, -70_001.0, 3e38],
    [5.0],
)


@exercise(
    title="Rotary embedding, in place",
    minutes=15,
    difficulty=2,
    where=WHERE,
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


rotary.alternative(
    "natural powers: nearer to the formula, one multiplication more in the hardware",
    edit("""
        -    angle = tl.load(positions + token) * tl.exp2(-i / HALF * tl.log2(base))
        +    angle = tl.load(positions + token) * tl.exp(-i / HALF * tl.log(base))
    """),
)


rotary.leaves_out(
    KERNEL,
    "scalar empty permuted tiny not_finite tied half bfloat16 double bool complex",
    "default_type numbers second_call unchanged",
)


@rotary.checks
def _(case: Case) -> None:
    for tokens, heads, half, gap, padding in (
        (2, 1, 2, 0, 0), (3, 2, 8, 0, 0), (3, 2, 8, 5, 0), (4, 3, 1, 2, 3), (2, 2, 1, 40_000, 0)
    ):  # fmt: skip
        whole = torch.randn(tokens, heads * (2 * half + padding) + gap)
        strides = whole.shape[1], 2 * half + padding, 1  # numbers may lie unused behind a head, and behind a token
        x = whole.as_strided((tokens, heads, 2 * half), strides)
        second = 40_001 if half == 1 else 6  # 40,001 * 100 ** 0 is exact, and neither a half nor a number of 16 bits
        positions = torch.tensor([5, second, 2, 0][:tokens])
        angles = positions[:, None, None] * 100.0 ** (-torch.arange(half).double() / half)
        left, right = x.double().split(half, 2)
        turned = [left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()]
        arguments = x, positions, x.stride(0), x.stride(1), 100.0, half
        got, report = launch(case, (tokens, heads), *arguments, out=0)
        case.equal(got, torch.cat(turned, 2).float(), rtol=1e-4, atol=1e-4, why="each pair is turned by its angle")
        if half > 2:
            in_blocks(case, report, 2 * x.numel())
