"""Larger than one device: is this schedule, this shard, this split right? The exercises of lesson 10."""

from gpu_course.common import with_ranks  # noqa: F401 (says where there are none)
from gpu_course.lesson10 import measured, pipelines, plans, samples
from gpu_course.lesson10.choosing import MEASURED, choose_measured
from gpu_course.lesson10.schedules import last_rank, write_schedule
from gpu_course.lesson10.sharding import Scaled, gather_state, reshard, start_sharded, train_sharded
from gpu_course.lesson10.splitting import TASKS, choose_meshes, rank_bytes, split_attention

__all__ = [
    "MEASURED", "TASKS", "Scaled", "choose_measured", "choose_meshes", "gather_state", "last_rank", "measured",
    "pipelines", "plans", "rank_bytes", "reshard", "samples", "split_attention", "start_sharded", "train_sharded",
    "write_schedule",
]  # fmt: skip
