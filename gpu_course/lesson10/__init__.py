"""Larger than one device: is this schedule, this shard, this split right? The exercises of lesson 10."""

from gpu_course.common import with_ranks  # noqa: F401 (says where there are none)
from gpu_course.lesson10 import measured, pipelines, plans
from gpu_course.lesson10.choose_measured import MEASURED, choose_measured
from gpu_course.lesson10.rank_bytes import rank_bytes
from gpu_course.lesson10.reshard import reshard
from gpu_course.lesson10.split_attention import split_attention
from gpu_course.lesson10.train_sharded import train_sharded
from gpu_course.lesson10.write_schedule import write_schedule

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "write_schedule", "train_sharded", "reshard", "split_attention", "rank_bytes", "choose_measured", "MEASURED",
    "measured", "pipelines", "plans",
]  # fmt: skip
