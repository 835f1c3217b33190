"""The exercise “Sum of a block, in CUDA C++”."""

import torch

import kernelcheck
from gpu_course.checks import Case, exercise
from gpu_course.common.launching import refuse


@exercise(
    minutes=15, difficulty=3, where="the CPU, thread by thread",
    needs=lambda: kernelcheck.why_not(),
    hints=(
        "Every thread puts one number into shared memory, 0 where x has ended. Then the upper half is added to the "
        "lower, again and again, until one number is left.",
        "Between a write of one thread and a read of another stands __syncthreads(), which all threads of the block "
        "must reach: not inside an if that some threads skip, and no thread may return before it.",
        "for (int half = blockDim.x / 2; half > 0; half /= 2): threads below half add part[threadIdx.x + half]; "
        "the barrier stands behind the if, within the loop. Thread 0 writes out[blockIdx.x].",
    ),
)  # fmt: skip
def block_sums() -> str:
    """Return CUDA C++ in which each block stores the sum of its 256 elements of x."""
    return r"""
__global__ void block_sums(const float* x, float* out, int n) {
    __shared__ float part[256];
    int element = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = element < n ? x[element] : 0.0f;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
"""


block_sums.exempt("it takes no argument", "other_input")


@block_sums.checks
def _(case: Case) -> None:
    source = case.call()
    case.fail_if(not isinstance(source, str), f"returns a {type(source).__name__}, expected a text")
    try:
        kernel = kernelcheck.compile_cuda(source, "block_sums")
    except kernelcheck.CompileError as error:
        case.fail(f"does not compile\n  {error}")
    for n in (256, 512, 1000, 300, 33_000):  # the last is more than 16 bits count
        blocks = -(-n // 256)
        x, out = torch.randn(n), torch.full((blocks,), -99.0)
        report = kernel.check(grid=(blocks, 1, 1), block=(256, 1, 1), args=(x, out, n), limit=1.0)
        case.about(f"the kernel with n = {n:,} and a grid of {blocks}", torch.device("cpu"))
        refuse(case, report.fault)
        case.equal(
            out, torch.stack([part.sum() for part in x.split(256)]), rtol=1e-4, atol=1e-4,
            why="one sum for each block of 256 elements; -99 stood there before",
        )  # fmt: skip
        alone = report.barriers < 3 * blocks and report.shared_accesses >= 512 * blocks  # 256 writes, 256 reads
        case.fail_if(alone, "does not halve: one thread adds number by number", "that takes 255 steps, halving takes 8")
        case.budget("bytes loaded", report.loaded_bytes, 4 * n, "each element is needed once")
        case.budget("requests of warps", report.requests, n // 8, "32 neighbours load 32 neighbours in one request")
        case.budget("bytes stored", report.stored_bytes, 4 * blocks, "one number a block")
