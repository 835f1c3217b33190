"""What would a GPU do with your own program? The exercises of lesson 13, and how it runs programs of others."""

from gpu_course.lesson13.deciding import Offer, batch_that_fits, cheapest, first_line
from gpu_course.lesson13.porting import device_test, train_on
from gpu_course.lesson13.running import excerpt, run, run_tests

__all__ = [
    "Offer", "batch_that_fits", "cheapest", "device_test", "excerpt", "first_line", "run", "run_tests", "train_on",
]  # fmt: skip
