"""How long does it take, and what limits it? The exercises of lesson 03."""

from gpu_course.lesson03.huber import huber
from gpu_course.lesson03.intensity import intensity
from gpu_course.lesson03.lost_share import lost_share
from gpu_course.lesson03.median_time_s import median_time_s
from gpu_course.lesson03.name_bound import name_bound
from gpu_course.lesson03.pad_vocabulary import pad_vocabulary

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "median_time_s", "intensity", "huber", "name_bound", "lost_share", "pad_vocabulary",
]  # fmt: skip
