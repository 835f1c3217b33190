"""How long does it take, and what limits it? The exercises of lesson 03."""

from gpu_course.lesson03.huber import huber
from gpu_course.lesson03.intensity import intensity
from gpu_course.lesson03.median_time_s import median_time_s
from gpu_course.lesson03.name_bound import name_bound

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "median_time_s", "intensity", "name_bound", "huber",
]  # fmt: skip
