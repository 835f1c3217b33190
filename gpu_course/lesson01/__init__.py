"""Which device, why none, which formats, and does it fit? The exercises of lesson 01."""

from gpu_course.lesson01.fast_formats import fast_formats
from gpu_course.lesson01.first_cause import first_cause
from gpu_course.lesson01.fits import fits
from gpu_course.lesson01.latency import seconds_until_done
from gpu_course.lesson01.pick_device import pick_device
from gpu_course.lesson01.visible_gpus import visible_gpus

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "pick_device", "first_cause", "fast_formats", "fits", "visible_gpus", "seconds_until_done",
]  # fmt: skip
