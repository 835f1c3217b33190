"""The exercise “A scan with a state”."""

import math

import torch

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.exemptions import KERNEL
from gpu_course.common.launching import in_blocks, launch

triton, tl = kernelcheck.triton()


@triton.jit
def after(a, b, next_a, next_b):
    """Return the step h -> next_a * (a * h + b) + next_b as one step: its factor and its summand."""
    return a * next_a, b * next_a + next_b


@exercise(
    minutes=18,
    difficulty=3,
    where="the CPU, with every access checked",
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


linear_scan.exempt(KERNEL, "scalar empty permuted sliced huge tiny tied")
linear_scan.exempt(KERNEL, "formats default_type numbers second_call unchanged")


@linear_scan.checks
def _(case: Case) -> None:
    sizes = (1, 4, 8, 1), (2, 8, 8, 1), (2, 21, 8, 1), (1, 24, 8, 5), (1, 150, 32, 1)  # 8 bits count to 127
    for rows, columns, block, larger in sizes:
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
