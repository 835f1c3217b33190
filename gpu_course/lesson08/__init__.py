"""Exercises of lesson 08: kernels in Triton's language and in CUDA C++, and operators around them."""

from gpu_course.lesson08.bias_gelu import bias_gelu
from gpu_course.lesson08.bias_gelu_backward import bias_gelu_backward
from gpu_course.lesson08.block_sums import block_sums
from gpu_course.lesson08.compiling import kernels_written
from gpu_course.lesson08.keep_rows_operator import keep_rows_operator
from gpu_course.lesson08.matmul_tiles import matmul_tiles
from gpu_course.lesson08.scale_add import scale_add
from gpu_course.lesson08.softmax_rows import softmax_rows

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "scale_add", "bias_gelu", "bias_gelu_backward", "keep_rows_operator", "softmax_rows", "matmul_tiles", "block_sums",
    "kernels_written",
]  # fmt: skip
