"""What does each rank hold, and send in a step, when parameters, gradients and optimizer state are sharded?

Bytes held and sent by the stages of ZeRO: Rajbhandari et al. 2020 (https://arxiv.org/abs/1910.02054, sections 3.1, 5
and 7). Stage 3 is what PyTorch's `fully_shard` does, a block at a time: while one computes, the next is gathered, and
what was gathered for the forward pass is gathered again for the backward pass
(https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html). Hybrid shards within a machine; machines are
copies that add up gradients. Times: `simgpu.Cluster`, no message behind computation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import simgpu
from course_utils import gpus, plots
from gpu_course.explorers import Choice, Explorer, Slider

__all__ = ["BLOCKS", "FORMATS", "STAGES", "Sharded", "Stage", "explore", "sharding"]

# bytes of a parameter and of a gradient, as they are sent; of all that AdamW keeps beside them
FORMATS: Mapping[str, tuple[int, int, int]] = {
    "fp32": (4, 4, 8),  # two moments
    "bf16, fp32 copy": (2, 2, 12),  # two moments and a copy of the parameters, in fp32
}
STAGES = ("0: data parallel", "1: optimizer state", "2: and gradients", "3: and parameters", "hybrid: 3 in a machine")
BLOCKS = 32  # equal ones, each gathered and reduced by itself
_HYBRID, _MACHINE, _GPU = 4, 8, "H100 SXM"


@dataclass(frozen=True)
class Stage:
    """What a rank holds at most, in bytes by owner, what it sends in a step, and the time of all messages."""

    parts: Mapping[str, float]
    inside_bytes: float  # sent among the ranks that share one copy of the model
    between_bytes: float  # and, hybrid, to the other copies
    messages_s: float  # if no computation hides them

    total_bytes = property(lambda self: sum(self.parts.values()), doc="Bytes a rank holds at most.")
    sent_bytes = property(lambda self: self.inside_bytes + self.between_bytes, doc="Bytes a rank sends in a step.")


@dataclass(frozen=True)
class Sharded:
    """A training on `ranks` ranks: the stage that was asked for, and beside it all of `STAGES`."""

    stage: int
    ranks: int
    parameters: int
    fmt: str
    stages: tuple[Stage, ...]

    chosen = property(lambda self: self.stages[self.stage], doc="What a rank holds and sends at `stage`.")


def sharding(
    *, stage: int, ranks: int, parameters: int, fmt: str, activations_gib: float, between: str = "InfiniBand"
) -> Sharded:
    """Return what each of `ranks` ranks holds and sends; `stage` is a place in `STAGES`, `fmt` one of `FORMATS`.

    `activations_gib` are those of one rank, `between` is a link of `simgpu.LINKS`: machines have 8 GPUs.
    """
    stages = tuple(_stage(one, ranks, parameters, fmt, activations_gib, between) for one in range(len(STAGES)))
    return Sharded(stage, ranks, parameters, fmt, stages)


def _stage(stage: int, ranks: int, parameters: int, fmt: str, activations_gib: float, between: str) -> Stage:
    weight, gradient, state = (size * parameters for size in FORMATS[fmt])
    shards = min(ranks, _MACHINE) if stage == _HYBRID else ranks
    copies = ranks // shards
    parts = {
        "parameters": weight / (shards if stage >= 3 else 1),
        "gathered": 2 / BLOCKS * weight if stage >= 3 else 0.0,  # a block computes, the next is gathered
        "gradients": gradient / (shards if stage >= 2 else 1),
        "optimizer state": state / (shards if stage >= 1 else 1),
        "activations": activations_gib * 2**30,
    }
    gathers = (0, 1, 1, 2, 2)[stage]  # of parameters in a step: after it; before forward and backward pass
    inside = (shards - 1) / shards * (gathers * weight + (1 if stage else 2) * gradient)
    between_bytes = 2 * (copies - 1) / copies * gradient / shards
    kind = "reduce_scatter" if stage else "all_reduce"
    messages = [  # of a block: how often, what, a rank's own part, among whom
        (gathers, "all_gather", weight / shards, range(shards)),
        (1, kind, gradient, range(shards)),
        (1, "all_reduce", gradient / shards, range(0, ranks, shards)),
    ]
    cluster = simgpu.Cluster(_GPU, per_machine=_MACHINE, between=between)
    ns = sum(times * cluster.cost(name, round(size / BLOCKS), who)[0] for times, name, size, who in messages)
    return Stage(parts, inside, between_bytes, BLOCKS * ns / 1e9)


def describe(s: Sharded) -> str:
    """Return the result in words."""
    stage = s.chosen
    parts = ", ".join(f"{owner} {plots.bytes_text(size)}" for owner, size in stage.parts.items() if size)
    other = f", {plots.bytes_text(stage.between_bytes)} of it to other copies" if stage.between_bytes else ""
    fits = "fits" if stage.total_bytes <= gpus.get(_GPU).room_bytes else "does not fit"
    return (
        f"{plots.count_text(s.parameters)} parameters, {s.fmt}, AdamW, {s.ranks} ranks, stage {STAGES[s.stage]}. A "
        f"rank holds {plots.bytes_text(stage.total_bytes)}, which {fits} an {_GPU}: {parts}. It sends "
        f"{plots.bytes_text(stage.sent_bytes)} in a step{other}; that takes {plots.seconds_text(stage.messages_s)} "
        "where no computation hides it. Predicted (Rajbhandari et al. 2020; links: the simulated cluster)."
    )


def draw(s: Sharded) -> Any:
    """Return the picture: what a rank holds at each stage, beside a GPU's memory, and the time of its messages."""
    titles = ("What a rank holds", "Messages of a step")
    figure, (left, right) = plots.new(titles, "stage", "GiB, predicted", columns=2, widths=(5, 4), height_in=3.8)
    names = ["0", "1", "2", "3", "hybrid"]
    parts = {owner: [one.parts[owner] / 2**30 for one in s.stages] for owner in s.chosen.parts}
    plots.stack(left, names, parts, edgecolor="white", hatch=plots.hatch(plots.PREDICTED))
    room = gpus.get(_GPU).room_bytes / 2**30
    left.axhline(room, color=plots.INK, linewidth=1.2)
    left.annotate(_GPU, (0.99, room), (0, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
                  ha="right", fontsize=8, color=plots.INK)  # fmt: skip
    right.bar(names, [1e3 * one.messages_s for one in s.stages], color=plots.BLUE, edgecolor="white",
              hatch=plots.hatch(plots.PREDICTED))  # fmt: skip
    right.set_ylabel("ms, predicted, nothing hidden")
    for axes in (left, right):
        axes.grid(False, axis="x")
        axes.axvspan(s.stage - 0.48, s.stage + 0.48, color=plots.GRID, zorder=0)  # the chosen one
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8.5)
    return figure


def explore() -> Explorer:
    """Return the explorer of lesson 10."""
    sizes = (124_000_000, 1_500_000_000, 7_000_000_000, 13_000_000_000, 70_000_000_000, 175_000_000_000)
    controls = [
        Choice("stage", "Stage", tuple(range(len(STAGES))), 0, STAGES.__getitem__),
        Slider("ranks", "Ranks", (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), 8),
        Slider("parameters", "Parameters", sizes, 7_000_000_000, plots.count_text),
        Choice("fmt", "Numbers", tuple(FORMATS), "bf16, fp32 copy"),
        Slider("activations_gib", "Activations, GiB", (0.0, 1.0, 5.0, 10.0, 20.0, 40.0), 10.0),
        Choice("between", "Between", tuple(simgpu.LINKS), "InfiniBand"),
    ]
    return Explorer("what a rank holds and sends", sharding, draw, describe, controls)
