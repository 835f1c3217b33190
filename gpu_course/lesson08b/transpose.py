"""The exercise “A transpose without bank conflicts, in CUDA C++”."""

import math

import torch

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.launching import refuse


@exercise(
    minutes=18,
    difficulty=3,
    where="the CPU, thread by thread",
    needs=lambda: kernelcheck.why_not(),
    hints=(
        "A block has 32 x 8 threads and a square of 32 x 32 numbers: each thread moves four of them. Warps read rows "
        "of x, put them into shared memory, and write rows of `out`, which are columns of the square.",
        "Between writing the square and reading it stands __syncthreads(). A column of float tile[32][32] lies in one "
        "bank: how wide must a row be for neighbours in a column to lie in different banks?",
        "float tile[32][33]. Read x[y * columns + x], store tile[threadIdx.y + i][threadIdx.x], then write "
        "tile[threadIdx.x][threadIdx.y + i] to out, whose rows have `rows` numbers, with the block's indices swapped.",
    ),
)
def transpose() -> str:
    """Return CUDA C++ in which each block transposes a 32 x 32 square of x."""
    return r"""
__global__ void transpose(const float* x, float* out, int rows, int columns) {
    __shared__ float tile[32][33];  // 33: the next row begins one bank further
    int column = blockIdx.x * 32 + threadIdx.x;
    int row = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (column < columns && row + i < rows)
            tile[threadIdx.y + i][threadIdx.x] = x[(row + i) * columns + column];
    __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x;  // of out
    row = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (column < rows && row + i < columns)
            out[(row + i) * rows + column] = tile[threadIdx.x][threadIdx.y + i];
}
"""


transpose.exempt("it takes no argument", "other_input")


@transpose.checks
def _(case: Case) -> None:
    source = case.call()
    case.fail_if(not isinstance(source, str), f"returns a {type(source).__name__}, expected a text")
    try:
        kernel = kernelcheck.compile_cuda(source, "transpose")
    except kernelcheck.CompileError as error:
        case.fail(f"does not compile\n  {error}")
    for rows, columns in ((1, 3), (32, 32), (40, 72), (33, 41), (1, 66_000)):  # the last: more than 16 bits count
        x, out = torch.randn(rows, columns), torch.full((columns, rows), math.nan)
        grid = -(-columns // 32), -(-rows // 32), 1
        report = kernel.check(grid=grid, block=(32, 8, 1), args=(x, out, rows, columns))
        case.about(f"the kernel with {rows} x {columns} numbers", torch.device("cpu"))
        refuse(case, report.fault)
        case.equal(out, x.t().contiguous(), why="the transpose; nan stood there before")
        if rows % 8 == columns % 8 == 0:  # other rows begin inside a sector
            for name, verb in (("x", "read"), ("out", "write")):
                why = f"neighbours of a warp {verb} neighbours: through shared memory"
                case.budget(f"32-byte sectors of {name}", report.by_array[name].sectors, x.numel() // 8, why)
        conflicts = report.bank_conflicts
        case.fail_if(
            conflicts,
            f"the result is right, but it takes {conflicts} bank conflicts and the limit is 0",
            "32 threads of a warp want different banks of shared memory: how far apart do the rows of the tile begin?",
            got=f"{conflicts} bank conflicts",
        )
