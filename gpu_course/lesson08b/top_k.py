"""The exercise “The largest numbers of a row”."""

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


top_k.exempt(KERNEL, "scalar empty permuted tiny")
top_k.exempt(KERNEL, "half bfloat16 double bool complex default_type numbers second_call unchanged")


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
