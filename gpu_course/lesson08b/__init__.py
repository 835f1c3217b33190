"""Exercises of the kernel gym: kernels that training and serving run, each checked on shapes that it has not seen."""

from gpu_course.lesson08b.adamw import adamw
from gpu_course.lesson08b.attention_tiles import attention_tiles
from gpu_course.lesson08b.contiguous import contiguous
from gpu_course.lesson08b.cross_entropy import cross_entropy
from gpu_course.lesson08b.far_sums import far_sums
from gpu_course.lesson08b.gated_tiles import gated_tiles
from gpu_course.lesson08b.int4_product import int4_product
from gpu_course.lesson08b.layer_norm import layer_norm
from gpu_course.lesson08b.linear_scan import after, linear_scan
from gpu_course.lesson08b.rotary import rotary
from gpu_course.lesson08b.top_k import top_k
from gpu_course.lesson08b.transpose import transpose

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "layer_norm", "adamw", "contiguous", "far_sums", "transpose", "gated_tiles", "attention_tiles", "linear_scan",
    "cross_entropy", "int4_product", "top_k", "rotary", "after",
]  # fmt: skip
