"""Do the ranks agree, and what did they send? The exercises of lesson 09: each answer runs on real ranks."""

from gpu_course.common import with_ranks  # noqa: F401 (says where there are none)
from gpu_course.lesson09.accumulate import accumulate
from gpu_course.lesson09.average_gradients import average_gradients
from gpu_course.lesson09.global_mean import global_mean
from gpu_course.lesson09.ring_all_reduce import ring_all_reduce
from gpu_course.lesson09.torchrun import torchrun
from gpu_course.lesson09.train import train

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "average_gradients", "train", "ring_all_reduce", "global_mean", "accumulate", "torchrun",
]  # fmt: skip
