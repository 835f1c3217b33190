"""How should a model be split over GPUs? Memory of a rank and time of a step for each mesh of data, tensor, pipeline.

The model is that of `will_it_fit`, trained in bfloat16 with AdamW, a micro-batch one sequence of s = 2,048 tokens; h is
its width; d, t, p are the ranks along the mesh. Neighbours share tensors, then data, then the pipeline.

Memory, the sum over the owners on the fullest rank: 2 bytes a weight, 2 a gradient, 12 for the optimizer (weights and
two states in float32), divided by t and p, and by d from the stages of ZeRO 1, 2, 3 on; in stage 3 besides one layer
and the embedding in one piece. A layer keeps s (8 h + (24 h + 4 heads) / t) bytes (Korthikanti et al. 2022,
https://arxiv.org/abs/2205.05198, section 4, without its dropout), the first of p ranks for p micro-batches; recomputing
keeps 2 h s and one layer. Logits: 8 bytes each / t, on the last rank.

Time of a micro-batch: 6 FLOPs a weight and token and 14 s² h a layer for attention (8 and 18 where the forward pass is
computed again), at the rate that the simulated clock gives products; other kernels move s h (56 + 78 / t) bytes a layer
and 35 a logit, at 90 % of the bandwidth: what `simgpu.forecast` counts of this model. Gradients are added to those
before, 6 bytes a parameter; with stages 2 and 3 copied for the message instead, 4 bytes, and in stage 3 the parameters
twice, 8. 4 all-reduces of 2 h s bytes a layer for tensors (6 where it is computed again), which nothing hides. A
pipeline takes p - 1 micro-batches more; of its links the slowest counts.

Gradients are summed behind 2/3 of the last micro-batch, its backward pass, in stages 2 and 3 of each; parameters are
gathered after the step, in stage 3 twice for each micro-batch, behind its computation but for the first layer and the
embedding, gathered before it and summed after it. Links: `Cluster.cost`. The optimizer moves 28 bytes a parameter.
Stages of the pipeline are taken to be balanced, the host never to be late.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import simgpu
from course_utils import gpus, plots
from gpu_course.common.gpts import MODELS as GPTS
from gpu_course.explorers import Choice, Explorer, Slider, Switch

__all__ = ["CLUSTERS", "MODELS", "Plan", "explore", "plan", "plans"]

CLUSTERS = {
    # https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html
    "DGX H100, InfiniBand": simgpu.Cluster("H100 SXM", 8, "NVLink", "InfiniBand"),
    "8 × H100, Ethernet": simgpu.Cluster("H100 SXM", 8, "NVLink", "Ethernet"),  # made up, as is the next
    "4 × RTX 4090, Ethernet": simgpu.Cluster("RTX 4090", 4, "PCIe", "Ethernet"),
}
MODELS = {name: GPTS[name] for name in ("Cerebras-GPT 2.7B", "Cerebras-GPT 6.7B", "Cerebras-GPT 13B", "GPT-3 175B")}
STAGES = {0: "nothing", 1: "optimizer (1)", 2: "gradients (2)", 3: "all (3)"}
_SEQUENCE, _SIZES = 2048, (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Plan:
    """One way to split: ranks along the mesh, bytes of the fullest rank by owner, seconds of a step by cause."""

    model: str
    cluster: str
    data: int
    tensor: int
    pipeline: int
    stage: int
    micro_batches: int
    recompute: bool
    parts: Mapping[str, float]
    times: Mapping[str, float]

    memory_bytes = property(lambda s: sum(s.parts.values()), doc="Bytes on the fullest rank.")
    step_s = property(lambda s: sum(s.times.values()), doc="Seconds of a step.")
    gpus = property(lambda s: s.data * s.tensor * s.pipeline, doc="How many GPUs.")
    room_bytes = property(lambda s: gpus.get(CLUSTERS[s.cluster].gpu).memory_bytes, doc="Memory of a GPU.")
    fits = property(lambda s: s.memory_bytes <= s.room_bytes, doc="Whether the fullest rank has room.")
    name = property(
        lambda s: f"data {s.data} × tensor {s.tensor} × pipeline {s.pipeline}, ZeRO {s.stage}", doc="The mesh in words."
    )


def plan(
    *, model: str, cluster: str, gpus: int, tensor: int = 1, pipeline: int = 1, stage: int = 0, sequences: int = 1024,
    recompute: bool = False,
) -> Plan:  # fmt: skip
    """Return memory and time of one way to split, predicted by the formulas above.

    `model` of `MODELS`, `cluster` of `CLUSTERS`; `stage` of ZeRO, 0 to 3; `sequences` a step in all, at least one a
    data rank. Raises ValueError where the mesh does not divide GPUs, heads or layers.
    """
    sizes = MODELS[model]
    if gpus % (tensor * pipeline) or sizes["heads"] % tensor or sizes["layers"] % pipeline:
        raise ValueError(f"tensor {tensor} × pipeline {pipeline} does not divide {gpus} GPUs, heads or layers")
    data = gpus // tensor // pipeline
    micro = max(1, sequences // data)
    rank = _Rank(CLUSTERS[cluster], data, tensor, pipeline, stage, micro, recompute, **sizes)
    return Plan(model, cluster, data, tensor, pipeline, stage, micro, recompute, rank.memory(), rank.times())


def plans(**setting: Any) -> list[Plan]:
    """Return all plans for `setting`, what `plan` takes but the mesh, the fastest that fits first.

    Stages 2 and 3 are tried without a pipeline only, which would gather and sum for each of its micro-batches.
    """
    sizes = MODELS[setting["model"]]
    found = []
    for tensor, pipeline, stage in ((t, p, z) for t in _SIZES for p in _SIZES for z in STAGES):
        whole = setting["gpus"] % (tensor * pipeline) + sizes["heads"] % tensor + sizes["layers"] % pipeline == 0
        more_than_one = stage == 0 or setting["gpus"] > tensor * pipeline
        if whole and more_than_one and (pipeline == 1 or stage < 2):
            found.append(plan(**setting, tensor=tensor, pipeline=pipeline, stage=stage))
    return sorted(found, key=lambda one: (not one.fits, one.step_s))


@dataclass(frozen=True)
class _Rank:
    links: simgpu.Cluster
    data: int
    tensor: int
    pipeline: int
    stage: int
    micro: int
    recompute: bool
    width: int
    layers: int
    heads: int
    vocabulary: int

    here = property(lambda s: s.layers // s.pipeline)  # layers of a rank
    layer = property(lambda s: 12 * s.width**2 / s.tensor)  # parameters of one
    outer = property(lambda s: s.vocabulary * s.width / s.tensor)  # of the embedding, which is also the output layer
    parameters = property(lambda s: s.here * s.layer + s.outer)

    def memory(self) -> dict[str, float]:
        weights, gradients, states = (self.data if self.stage >= least else 1 for least in (3, 2, 1))
        whole = 2 * (self.layer + self.outer) if weights > 1 else 0
        inner = (24 * self.width + 4 * self.heads) / self.tensor
        kept = _SEQUENCE * (8 * self.width + inner)
        a_layer = 2 * self.width * _SEQUENCE if self.recompute else kept
        first = min(self.pipeline, self.micro) * self.here * a_layer
        last = self.here * a_layer + 8 * self.vocabulary / self.tensor * _SEQUENCE
        return {
            "parameters": 2 * self.parameters / weights + whole,
            "gradients": 2 * self.parameters / gradients + (2 * self.layer if gradients > 1 else 0),
            "optimizer": 12 * self.parameters / states,
            "activations": max(first, last) + self.recompute * kept,
        }

    def times(self) -> dict[str, float]:
        row, costs = gpus.get(self.links.gpu), simgpu.Costs()
        bandwidth = costs.bandwidth_share * row.bandwidth_gbps * 1e9
        tflops = min(costs.matrix_share * row.peak_tflops["bf16"], row.best_bf16_tflops or math.inf)
        work = self._compute_s(tflops * 1e12, bandwidth)
        reduces = (6 if self.recompute else 4) * self.here
        tensor = reduces * self._cost("all_reduce", 2 * self.width * _SEQUENCE, range(self.tensor))
        hop, machine = self.tensor * self.data, self.links.per_machine
        first = max(0, machine - hop) if self.pipeline * hop > machine else 0  # the slowest hop leaves the machine
        ends = [first, first + hop]
        sends = 2 * self._cost("send", 2 * self.width * _SEQUENCE, ends) if self.pipeline > 1 else 0
        one = work + tensor + sends
        return {
            "compute": self.micro * work + 28 * self.parameters / (self.data if self.stage else 1) / bandwidth,
            "tensor messages": self.micro * tensor,
            "pipeline": self.micro * sends + (self.pipeline - 1) * one,
            "data messages": self._data_s(work),
        }

    def _compute_s(self, flops_a_second: float, bandwidth: float) -> float:
        """Return the seconds of a micro-batch on one rank."""
        again = 4 / 3 if self.recompute else 1
        copied = {2: 4, 3: 12}.get(self.stage, 6 if self.micro > 1 else 0) * self.parameters
        products = 6 * self.layer * self.here * again + 6 * self.outer / self.pipeline
        scores = (18 if self.recompute else 14) * _SEQUENCE * self.width / self.tensor * self.here
        logits = 35 * self.vocabulary / self.tensor / self.pipeline
        moved = (56 + 78 / self.tensor) * self.width * self.here * again + logits
        return _SEQUENCE * ((products + scores) / flops_a_second + moved / bandwidth) + copied / bandwidth

    def _data_s(self, work: float) -> float:
        """Return the seconds of messages among data ranks that no computation hides."""
        group, size = range(0, self.tensor * self.data, self.tensor), 2 * self.parameters
        gather = lambda nbytes: self._cost("all_gather", nbytes / self.data, group)  # noqa: E731
        reduce = lambda nbytes: self._cost("reduce_scatter", nbytes, group)  # noqa: E731
        if self.stage == 3:
            ends = gather(2 * (self.layer + self.outer)) + reduce(2 * (self.layer + self.outer))
            return self.micro * max(ends, 2 * gather(size) + reduce(size) - work)
        if self.stage == 0:
            return max(0.0, self._cost("all_reduce", size, group) - 2 / 3 * work)
        seen = max(0.0, reduce(size) - 2 / 3 * work)
        return seen * (self.micro if self.stage == 2 else 1) + gather(size)

    def _cost(self, kind: str, nbytes: float, ranks: Any) -> float:
        return self.links.cost(kind, round(nbytes), ranks)[0] / 1e9


@dataclass(frozen=True)
class Chosen:
    """The plan of the controls beside the fastest that fit."""

    plan: Plan
    best: tuple[Plan, ...]


def choose(*, tensor: int, pipeline: int, stage: int, **setting: Any) -> Chosen:
    """Return the plan of these sizes, the largest possible where they are more, beside the fastest that fit."""
    counts = _offered(setting | {"tensor": tensor})
    tensor = min(tensor, _SIZES[counts["tensor"] - 1])
    pipeline = min(pipeline, _SIZES[_offered(setting | {"tensor": tensor})["pipeline"] - 1])
    made = plan(**setting, tensor=tensor, pipeline=pipeline, stage=stage)
    return Chosen(made, tuple(one for one in plans(**setting) if one.fits)[:6])


def _offered(chosen: Mapping[str, Any]) -> dict[str, int]:
    """Return how many sizes divide the heads, the layers and the GPUs."""
    sizes, count = MODELS[chosen["model"]], chosen["gpus"]
    tensor = sum(not (sizes["heads"] % one or count % one) for one in _SIZES)
    left = count // min(chosen["tensor"], _SIZES[tensor - 1])
    return {"tensor": tensor, "pipeline": sum(not (sizes["layers"] % one or left % one) for one in _SIZES)}


def describe(chosen: Chosen) -> str:
    """Return the result in words."""
    made, best = chosen.plan, chosen.best
    room = f"{plots.bytes_text(made.memory_bytes)} of {plots.bytes_text(made.room_bytes)}"
    head = f"{made.model} on {made.gpus} GPUs ({made.cluster}): {made.name}: {room} a rank"
    step = f"{plots.seconds_text(made.step_s)} a step of {made.micro_batches} micro-batches a rank"
    if not best:
        return f"{head}, {step}; no way to split fits. Predicted by formulas."
    gap = made.step_s / best[0].step_s
    more = "does not fit" if not made.fits else "is the fastest" if gap <= 1 else f"takes {gap:.2f} times the fastest"
    first = f"{best[0].name}, {plots.seconds_text(best[0].step_s)}"
    return f"{head}, {step}; it {more}. The fastest that fits: {first}. Predicted by formulas."


def draw(chosen: Chosen) -> Any:
    """Return the picture: memory of a rank by owner, time of a step by cause; the chosen plan above the fastest."""
    rows = [chosen.plan, *(one for one in chosen.best if one != chosen.plan)]
    titles = ("Memory of the fullest rank", "Time of a step, predicted")
    figure, (left, right) = plots.new(titles, "GiB", height_in=1.6 + 0.3 * len(rows), columns=2, widths=(5, 5))
    names = [f"d {one.data} t {one.tensor} p {one.pipeline} Z{one.stage}" for one in rows]
    names[0] = f"yours: {names[0]}"
    room = chosen.plan.room_bytes / 2**30
    for axes, values, scale in ((left, "parts", 2**30), (right, "times", 1.0)):
        parts = {key: [getattr(one, values)[key] / scale for one in rows] for key in getattr(rows[0], values)}
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
        Slider("tensor", "Tensor", _SIZES, 1),
        Slider("pipeline", "Pipeline", _SIZES, 1),
        Slider("stage", "Shard (ZeRO)", tuple(STAGES), 0, STAGES.get),
        Switch("recompute", "Recompute"),
    ]
    return Explorer("ways to split a model", choose, draw, describe, controls, offered=_offered)
