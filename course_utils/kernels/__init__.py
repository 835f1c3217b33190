"""What does this kernel do: right, in bounds, free of races, how many bytes? Written for a GPU, run here without one.

    add = kernels.compile_cuda(source, "add")  # CUDA C++, where there is a compiler
    report = add(grid=(4, 1, 1), block=(256, 1, 1), args=(x, y, out, 1000))

    triton, tl = kernels.triton()  # Triton's language, everywhere
    report = kernels.checked(kernel, grid, x, y, out, 1000, BLOCK=256)

Each report says what was read and written, and what is wrong.

CUDA C++ needs a C++ compiler and Linux; `why_not()` says what is missing. The compiler's hooks for its thread sanitizer
report each access to memory, a small runtime answers them and runs each thread of a block as a fiber, in a process of
its own. So a fault is named, and not met by chance: a race is two accesses with no barrier between, whoever came first.
Not seen: a local variable, or an array of `torch.empty`, that is read before it is written. Floating-point numbers are
the CPU's: sums without fused multiply-add, and exact functions where a GPU has fast ones such as `__expf`.
"""

from course_utils.kernels.cuda import Kernel, compile_cuda
from course_utils.kernels.faults import KernelFault
from course_utils.kernels.report import CudaFault, Report, picture
from course_utils.kernels.toolchain import CompileError, Compiler, Unavailable, compiler, why_not
from course_utils.kernels.traffic import Traffic
from course_utils.kernels.triton_language import checked, triton
from course_utils.kernels.triton_memory import Report as TritonReport

__all__ = [
    "CompileError", "Compiler", "CudaFault", "Kernel", "KernelFault", "Report", "Traffic", "TritonReport",
    "Unavailable", "checked", "compile_cuda", "compiler", "picture", "triton", "why_not",
]  # fmt: skip
