"""Where is the tensor, and what did it cost to get it there? The exercises of lesson 02."""

from gpu_course.lesson02.copy_time_ms import copy_time_ms
from gpu_course.lesson02.move_batch import move_batch
from gpu_course.lesson02.move_pieces import move_pieces
from gpu_course.lesson02.nearest import nearest
from gpu_course.lesson02.normalise import normalise
from gpu_course.lesson02.ramp import ramp
from gpu_course.lesson02.trips import cpu_ms, measure_ms, predicted_ms

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "ramp", "nearest", "copy_time_ms", "move_pieces", "move_batch", "normalise", "cpu_ms", "measure_ms",
    "predicted_ms",
]  # fmt: skip
