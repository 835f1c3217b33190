"""What would a GPU do with your own program? The exercises of lesson 13, and how it runs programs of others."""

from gpu_course.lesson13.batch_that_fits import batch_that_fits
from gpu_course.lesson13.cheapest import Offer, cheapest
from gpu_course.lesson13.device_test import device_test
from gpu_course.lesson13.first_line import first_line
from gpu_course.lesson13.running import excerpt, run, run_tests
from gpu_course.lesson13.train_on import train_on

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "first_line", "cheapest", "device_test", "batch_that_fits", "train_on", "Offer", "excerpt", "run", "run_tests",
]  # fmt: skip
