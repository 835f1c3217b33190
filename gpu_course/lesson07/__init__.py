"""Exercises of lesson 07: where the bytes are, and how to do with fewer of them."""

from gpu_course.lesson07.accumulate import accumulate
from gpu_course.lesson07.allocator import limit_memory
from gpu_course.lesson07.evaluate_batches import evaluate_batches
from gpu_course.lesson07.four_parts import four_parts
from gpu_course.lesson07.kv_cache_bytes import kv_cache_bytes
from gpu_course.lesson07.largest_batch import largest_batch
from gpu_course.lesson07.LowRank import LowRank
from gpu_course.lesson07.quarter_step import quarter_step

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "accumulate", "quarter_step", "evaluate_batches", "four_parts", "LowRank", "largest_batch", "kv_cache_bytes",
    "limit_memory",
]  # fmt: skip
