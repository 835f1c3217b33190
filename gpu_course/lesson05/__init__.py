"""Does the loop train, measure, cast, count and resume as it should? The exercises of lesson 05."""

from gpu_course.lesson05.amp_step import amp_step
from gpu_course.lesson05.evaluate import evaluate
from gpu_course.lesson05.mean_loss import mean_loss
from gpu_course.lesson05.pictures import loss_curve
from gpu_course.lesson05.Progress import Progress
from gpu_course.lesson05.real_sizes import PROGRAMS
from gpu_course.lesson05.resumed import follow, start
from gpu_course.lesson05.train_epoch import train_epoch
from gpu_course.lesson05.train_step import train_step

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "train_step", "evaluate", "mean_loss", "train_epoch", "amp_step", "Progress", "PROGRAMS", "follow", "loss_curve",
    "start",
]  # fmt: skip
