"""Exercises of lesson 06: what a profile says, and programs whose GPU waits."""

from gpu_course.lesson06.cases import CAUSES, lost_ms, table, with_numpy
from gpu_course.lesson06.diagnose import diagnose
from gpu_course.lesson06.quiet import hide_profiler_messages
from gpu_course.lesson06.ranks import read_trace
from gpu_course.lesson06.record_steps import record_steps
from gpu_course.lesson06.repair_both import repair_both
from gpu_course.lesson06.repair_reads import repair_reads
from gpu_course.lesson06.repairs import repaired
from gpu_course.lesson06.timelines import source, timelines

__all__ = [  # noqa: RUF022, exercises in the order of the lesson
    "record_steps", "diagnose", "repair_reads", "repair_both", "CAUSES", "hide_profiler_messages", "lost_ms",
    "read_trace", "repaired", "source", "table", "timelines", "with_numpy",
]  # fmt: skip
