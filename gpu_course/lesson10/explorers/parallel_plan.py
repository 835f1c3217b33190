"""How should a model be split over GPUs? The explorer of memory and time for each mesh of data, tensor, pipeline.

Everything it shows is predicted by the formulas of `gpu_course.lesson10.plans`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Choice, Explorer, Slider, Switch
from gpu_course.lesson10.plans import CLUSTERS, MODELS, SIZES, STAGES, Plan, plan, plans

__all__ = ["CLUSTERS", "MODELS", "Plan", "explore", "plan", "plans"]


_LABEL = "Predicted by formulas; 827 published runs on H100 took about twice as long."  # python -m benchmarks.splits


@dataclass(frozen=True)
class Chosen:
    """The plan of the controls beside the fastest that fit."""

    plan: Plan
    best: tuple[Plan, ...]


def choose(*, tensor: int, pipeline: int, stage: int, **setting: Any) -> Chosen:
    """Return the plan of these sizes, the largest possible where they are more, beside the fastest that fit."""
    counts = _offered(setting | {"tensor": tensor})
    tensor = min(tensor, SIZES[counts["tensor"] - 1])
    pipeline = min(pipeline, SIZES[_offered(setting | {"tensor": tensor})["pipeline"] - 1])
    split = plan(**setting, tensor=tensor, pipeline=pipeline, stage=stage)
    return Chosen(split, tuple(other for other in plans(**setting) if other.fits)[:6])


def _offered(chosen: Mapping[str, Any]) -> dict[str, int]:
    """Return how many sizes divide the heads, the layers and the GPUs."""
    sizes, count = MODELS[chosen["model"]], chosen["gpus"]
    tensor = sum(not (sizes["heads"] % size or count % size) for size in SIZES)
    left = count // min(chosen["tensor"], SIZES[tensor - 1])
    return {"tensor": tensor, "pipeline": sum(not (sizes["layers"] % size or left % size) for size in SIZES)}


def describe(chosen: Chosen) -> str:
    """Return the result in words."""
    split, best = chosen.plan, chosen.best
    needed, room = plots.bytes_text(split.memory_bytes), plots.bytes_text(split.room_bytes)
    text = (
        f"{split.model} on {split.gpus} GPUs ({split.cluster}): {split.name}. A rank needs {needed} and has {room}: "
        f"this {'fits' if split.fits else 'does not fit'}. A step of {split.micro_batches} micro-batches on each rank "
        f"takes {plots.seconds_text(split.step_s)}."
    )
    if not best:
        return f"{text} No way to split fits. {_LABEL}"
    if split.fits and split.step_s <= best[0].step_s:
        return f"{text} This is the fastest way that fits. {_LABEL}"
    fastest = f"The fastest way that fits: {best[0].name}, {plots.seconds_text(best[0].step_s)}."
    return f"{text} {fastest} {_LABEL}"


def draw(chosen: Chosen) -> Any:
    """Return the picture: memory of a rank by owner, time of a step by cause; the chosen plan above the fastest."""
    rows = [chosen.plan, *(split for split in chosen.best if split != chosen.plan)]
    titles = ("Memory of the fullest rank", "Time of a step, predicted")
    figure, (left, right) = plots.new(titles, "GiB", height_in=1.6 + 0.3 * len(rows), columns=2, widths=(5, 5))
    names = [f"d {split.data} t {split.tensor} p {split.pipeline} Z{split.stage}" for split in rows]
    names[0] = f"yours: {names[0]}"
    room = chosen.plan.room_bytes / 2**30
    for axes, values, scale in ((left, "parts", 2**30), (right, "times", 1.0)):
        parts = {key: [getattr(split, values)[key] / scale for split in rows] for key in getattr(rows[0], values)}
        plots.stack(axes, range(len(rows)), parts, across=True, height=0.6)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(False, axis="y")
        plots.legend(axes, loc="upper center", bbox_to_anchor=(0.4, -0.75 / (0.6 + 0.3 * len(rows))), ncols=2)
    left.set_yticks(range(len(rows)), names)
    left.axvline(room, color=plots.INK, linewidth=1.5)
    left.set_xlim(0, min(left.get_xlim()[1], 3 * room))
    right.set_yticks([])
    right.set_xlabel("s")
    return figure


def explore() -> Explorer:
    """Return the explorer of lesson 10."""
    controls = [
        Choice("model", "Model", tuple(MODELS), "Cerebras-GPT 13B"),
        Choice("cluster", "Cluster", tuple(CLUSTERS), "DGX H100, InfiniBand"),
        Slider("gpus", "GPUs", (8, 16, 32, 64, 128, 256, 512), 64),
        Slider("sequences", "Sequences", (512, 1024, 2048), 1024),
        Slider("tensor", "Tensor", SIZES, 1),
        Slider("pipeline", "Pipeline", SIZES, 1),
        Slider("stage", "Shard (ZeRO)", tuple(STAGES), 0, STAGES.get),
        Switch("recompute", "Recompute"),
    ]
    return Explorer("ways to split a model", choose, draw, describe, controls, offered=_offered)
