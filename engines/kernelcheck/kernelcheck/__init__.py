"""What does this kernel do: right, in bounds, free of races, how many bytes? Written for a GPU, run here without one.

    add = kernelcheck.compile_cuda(source, "add")  # CUDA C++, where there is a compiler
    report = add(grid=(4, 1, 1), block=(256, 1, 1), args=(x, y, out, 1000))

    triton, tl = kernelcheck.triton()  # Triton's language, everywhere
    report = kernelcheck.checked(kernel, grid, x, y, out, 1000, BLOCK=256)

    report = kernelcheck.tile.checked(kernel, grid, x, y, out, 256)  # cuTile, where its package is

Each report says what was read and written, and what is wrong.

CUDA C++ needs a C++ compiler and Linux; `why_not()` says what is missing. The compiler's hooks for its thread sanitizer
report each access to memory, a small runtime answers them and runs each thread of a block as a fiber, in a process of
its own. So a fault is named, and not met by chance: a race is two accesses with no barrier between, whoever came first.
Not seen: a local variable, or an array of `torch.empty`, that is read before it is written. Floating-point numbers are
the CPU's: sums without fused multiply-add, and exact functions where a GPU has fast ones such as `__expf`.
"""

from kernelcheck import tile
from kernelcheck.cuda.kernel import Kernel, compile_cuda
from kernelcheck.cuda.report import CudaFault, Report
from kernelcheck.cuda.toolchain import Compiler, Unavailable, compiler, why_not
from kernelcheck.faults import CompileError, KernelFault
from kernelcheck.traffic import Traffic
from kernelcheck.triton.language import checked, triton
from kernelcheck.triton.memory import Addresses
from kernelcheck.triton.memory import Report as TritonReport

__all__ = [
    "Addresses", "CompileError", "Compiler", "CudaFault", "Kernel", "KernelFault", "Report", "Traffic",
    "TritonReport", "Unavailable", "checked", "compile_cuda", "compiler", "tile", "triton", "why_not",
]  # fmt: skip

__tracebackhide__ = True  # for stacks this package is a library, wherever it is installed
