"""Which device, why none, which formats, and does it fit? The exercises of lesson 01."""

from gpu_course.lesson01.fast_formats import fast_formats
from gpu_course.lesson01.fits import fits
from gpu_course.lesson01.latency import seconds_until_done
from gpu_course.lesson01.pick_device import pick_device

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "pick_device", "fast_formats", "fits", "seconds_until_done",
]  # fmt: skip
