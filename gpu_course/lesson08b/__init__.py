"""Exercises of the kernel gym: kernels that training and serving run, each checked on shapes that it has not seen."""

from gpu_course.lesson08b.addresses import adamw, contiguous, far_sums
from gpu_course.lesson08b.norms import cross_entropy, layer_norm, layer_norm_backward
from gpu_course.lesson08b.products import attention, int4_product
from gpu_course.lesson08b.rows import after, linear_scan, rotary, top_k
from gpu_course.lesson08b.transposing import transpose

__all__ = [
    "adamw", "after", "attention", "contiguous", "cross_entropy", "far_sums", "int4_product", "layer_norm",
    "layer_norm_backward", "linear_scan", "rotary", "top_k", "transpose",
]  # fmt: skip
