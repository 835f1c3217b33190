"""How long do the ranks of a pipeline wait, and how many activations do they hold, under each schedule?"""

from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Choice, Explorer, Slider
from gpu_course.lesson10 import pipelines

__all__ = ["SCHEDULES", "Step", "explore", "pipeline"]

_MIB = 2**20
SCHEDULES = {  # stages a rank, and whether the backward pass is two actions
    "GPipe": None, "1F1B": (1, False), "interleaved, 2 stages a rank": (2, False), "zero bubble (ZB-H1)": (1, True),
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One training step of a pipeline; times in ms, bytes of activations for each rank at most."""

    name: str
    schedule: pipelines.Schedule
    held_bytes: tuple[int, ...]

    total_ms = property(lambda s: s.schedule.total, doc="From the first action to the last, in ms.")
    bubble = property(lambda s: s.schedule.bubble, doc="Share of the time, 0 to 1, in which ranks wait.")


def pipeline(
    *, schedule: str, ranks: int, micro: int, forward_ms: float, backward_ms: float, activation_mib: float
) -> Step:
    """Return one step of `micro` micro-batches through `ranks` ranks that have equal shares of the model.

    `forward_ms`, `backward_ms` and `activation_mib` are of one micro-batch on one rank; stages of a rank share them
    equally. I and W take half of the backward pass each. Left out: messages, the loss, what I needs and W does not.
    """
    each, split = SCHEDULES[schedule] or (1, False)
    text = pipelines.one_f_one_b(ranks, micro, each, split) if SCHEDULES[schedule] else pipelines.gpipe(ranks, micro)
    plan = pipelines.Schedule(text, forward_ms / each, backward_ms / each)
    return Step(schedule, plan, tuple(round(held * activation_mib * _MIB / each) for held in plan.held))


def describe(s: Step) -> str:
    """Return the result in words."""
    most, p, m = max(s.held_bytes), len(s.held_bytes), s.schedule.micro
    return (
        f"{s.name}, {p} ranks, {m} micro-batch{'es' * (m > 1)}: {plots.seconds_text(s.total_ms / 1e3)}, bubble "
        f"{s.bubble:.1%}; rank {s.held_bytes.index(most)} holds most activations, {plots.bytes_text(most)}. Predicted; "
        "messages take no time here."
    )


def draw(s: Step) -> Any:
    """Return the picture of the schedule, behind each rank the bytes of its activations."""
    return s.schedule.plot(f"{s.name}: bubble {s.bubble:.1%}", "ms, predicted", [*map(plots.bytes_text, s.held_bytes)])


def explore() -> Explorer:
    """Return the explorer of lesson 10."""
    controls = [
        Choice("schedule", "Schedule", tuple(SCHEDULES), "1F1B"),
        Slider("ranks", "Ranks", (2, 4, 8), 4),
        Slider("micro", "Micro-batches", (1, 2, 4, 8, 16, 32), 8),
        Slider("forward_ms", "Forward, ms", (0.5, 1.0, 2.0, 5.0, 10.0), 1.0),
        Slider("backward_ms", "Backward, ms", (0.5, 1.0, 2.0, 5.0, 10.0, 20.0), 2.0),
        Slider("activation_mib", "Activations, MiB", (10, 50, 100, 500, 1000), 100),
    ]
    return Explorer("pipeline schedules", pipeline, draw, describe, controls)
