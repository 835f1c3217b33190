"""What does this kernel do: right, in bounds, free of races, how many bytes? Written for a GPU, run here without one.

    add = kernels.compile_cuda(source, "add")  # CUDA C++, where there is a compiler
    report = add(grid=(4, 1, 1), block=(256, 1, 1), args=(x, y, out, 1000))

    triton, tl = kernels.triton()  # Triton's language, everywhere
    report = kernels.checked(kernel, grid, x, y, out, 1000, BLOCK=256)

Each report says what was read and written, and what is wrong.
"""

from course_utils.kernels.cuda import (
    CompileError,
    Compiler,
    Kernel,
    Report,
    Unavailable,
    compile_cuda,
    compiler,
    why_not,
)
from course_utils.kernels.faults import KernelFault
from course_utils.kernels.triton_language import checked, triton
from course_utils.kernels.triton_memory import Report as TritonReport
from course_utils.kernels.triton_memory import Traffic

__all__ = [
    "CompileError", "Compiler", "Kernel", "KernelFault", "Report", "Traffic", "TritonReport", "Unavailable", "checked",
    "compile_cuda", "compiler", "triton", "why_not",
]  # fmt: skip
