"""What does this kernel do: right, in bounds, free of races, how many bytes? Written for a GPU, run here without one.

add = kernels.compile_cuda(source, "add")
report = add(grid=(4, 1, 1), block=(256, 1, 1), args=(x, y, out, 1000))
"""

from course_utils.kernels.cuda import (
    CompileError,
    Compiler,
    Kernel,
    KernelFault,
    Report,
    Unavailable,
    compile_cuda,
    compiler,
    why_not,
)

__all__ = [
    "CompileError",
    "Compiler",
    "Kernel",
    "KernelFault",
    "Report",
    "Unavailable",
    "compile_cuda",
    "compiler",
    "why_not",
]
