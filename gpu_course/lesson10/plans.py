"""Plans for splitting a model: memory of a rank and time of a step for each mesh.

The model is that of `will_it_fit`, trained in bfloat16 with AdamW, a micro-batch one sequence of s = 2,048 tokens; h is
its width; d, t, p are the ranks along the mesh. (`Rank` also takes other layers, sequences and micro-batches.)
Neighbours share tensors, then data, then the pipeline.

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
Stages of the pipeline are taken to be balanced, the host never to be late: that is `IDEAL`. A real program reaches a
smaller share of the products' rate, and its host needs time for each layer: `ProgramCosts`, of which
`gpu_course.lesson10.measured` has one that fits published runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import simgpu
from course_utils import gpus
from gpu_course.common.gpts import MODELS as GPTS

__all__ = [
    "CLUSTERS", "IDEAL", "MODELS", "SEQUENCE", "SIZES", "STAGES", "Plan", "ProgramCosts", "Rank", "plan", "plans",
]  # fmt: skip

CLUSTERS = {
    # https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html
    "DGX H100, InfiniBand": simgpu.Cluster("H100 SXM", 8, "NVLink", "InfiniBand"),
    "8 × H100, Ethernet": simgpu.Cluster("H100 SXM", 8, "NVLink", "Ethernet"),  # made up, as is the next
    "4 × RTX 4090, Ethernet": simgpu.Cluster("RTX 4090", 4, "PCIe", "Ethernet"),
}
MODELS = {name: GPTS[name] for name in ("Cerebras-GPT 2.7B", "Cerebras-GPT 6.7B", "Cerebras-GPT 13B", "GPT-3 175B")}
STAGES = {0: "nothing", 1: "optimizer (1)", 2: "gradients (2)", 3: "all (3)"}
SEQUENCE, SIZES = 2048, (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class ProgramCosts:
    """What the training program adds to the data sheets of GPU and links.

    - `share`: of the rate that the simulated clock gives products of matrices;
    - `layer_s`: what the host needs for both passes of a layer, and `split_layer_s` more where tensor ranks share it;
    - `send_s`: what it needs for a message along the pipeline;
    - `hidden`: the part of a micro-batch behind which gradients travel;
    - `rates`: GB/s of a collective over 1, 2, 4, … whole machines by its name, where somebody measured them.
    """

    share: float = 1.0
    layer_s: float = 0.0
    split_layer_s: float = 0.0
    send_s: float = 0.0
    hidden: float = 2 / 3
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


IDEAL = ProgramCosts()


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
    room_bytes = property(lambda s: gpus.get(CLUSTERS[s.cluster].gpu).room_bytes, doc="Memory of a GPU.")
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
    rank = Rank(CLUSTERS[cluster], data, tensor, pipeline, stage, micro, recompute, **sizes)
    return Plan(model, cluster, data, tensor, pipeline, stage, micro, recompute, rank.memory(), rank.times())


def plans(**setting: Any) -> list[Plan]:
    """Return all plans for `setting`, what `plan` takes but the mesh, the fastest that fits first.

    Stages 2 and 3 are tried without a pipeline only, which would gather and sum for each of its micro-batches.
    """
    sizes = MODELS[setting["model"]]
    made = []
    for tensor, pipeline, stage in ((t, p, z) for t in SIZES for p in SIZES for z in STAGES):
        whole = setting["gpus"] % (tensor * pipeline) + sizes["heads"] % tensor + sizes["layers"] % pipeline == 0
        more_than_one = stage == 0 or setting["gpus"] > tensor * pipeline
        if whole and more_than_one and (pipeline == 1 or stage < 2):
            made.append(plan(**setting, tensor=tensor, pipeline=pipeline, stage=stage))
    return sorted(made, key=lambda one: (not one.fits, one.step_s))


@dataclass(frozen=True)
class Rank:
    """One rank of a mesh, `width` to `vocabulary` the model's sizes, with its memory in bytes and its times in seconds.

    `numbers` are the parameters of a layer, 12 width² where not given; `tied` says that the embedding is also the
    output layer; a micro-batch is `each` sequences of `sequence` tokens.
    """

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
    numbers: int = 0
    tied: bool = True
    sequence: int = SEQUENCE
    each: int = 1
    program: ProgramCosts = IDEAL

    here = property(lambda s: s.layers / s.pipeline)  # layers of a rank
    layer = property(lambda s: (s.numbers or 12 * s.width**2) / s.tensor)  # parameters of one
    outer = property(lambda s: s.vocabulary * s.width / s.tensor)  # of the embedding, or of the output layer
    ends = property(lambda s: 1 if s.tied or s.pipeline > 1 else 2)  # how many of these a rank has
    parameters = property(lambda s: s.here * s.layer + s.ends * s.outer)
    tokens = property(lambda s: s.sequence * s.each)  # of a micro-batch

    def memory(self) -> dict[str, float]:
        """Return the bytes on the fullest rank, by owner."""
        weights, gradients, states = (self.data if self.stage >= least else 1 for least in (3, 2, 1))
        whole = 2 * (self.layer + self.outer) if weights > 1 else 0
        inner = (24 * self.width + 4 * self.heads) / self.tensor
        kept = self.tokens * (8 * self.width + inner)
        a_layer = 2 * self.width * self.tokens if self.recompute else kept
        first = min(self.pipeline, self.micro) * self.here * a_layer
        last = self.here * a_layer + 8 * self.vocabulary / self.tensor * self.tokens
        return {
            "parameters": 2 * self.parameters / weights + whole,
            "gradients": 2 * self.parameters / gradients + (2 * self.layer if gradients > 1 else 0),
            "optimizer": 12 * self.parameters / states,
            "activations": max(first, last) + self.recompute * kept,
        }

    def times(self) -> dict[str, float]:
        """Return the seconds of a step, by cause."""
        row, costs, program = gpus.get(self.links.gpu), simgpu.Costs(), self.program
        bandwidth = costs.bandwidth_share * row.bandwidth_gbps * 1e9
        tflops = min(costs.matrix_share * row.peak_tflops["bf16"], row.best_bf16_tflops or math.inf)
        work = self._compute_s(program.share * tflops * 1e12, bandwidth)
        reduces = (6 if self.recompute else 4) * self.here
        tensor = reduces * self._cost("all_reduce", 2 * self.width * self.tokens, range(self.tensor))
        host = self.here * (program.layer_s + (program.split_layer_s if self.tensor > 1 else 0))
        work = max(work, host - tensor)
        sends = self._sends_s()
        of_micro = work + tensor + sends
        return {
            "compute": self.micro * work + 28 * self.parameters / (self.data if self.stage else 1) / bandwidth,
            "tensor messages": self.micro * tensor,
            "pipeline": self.micro * sends + (self.pipeline - 1) * of_micro,
            "data messages": self._data_s(work),
        }

    def _sends_s(self) -> float:
        """Return the seconds of the two messages of a micro-batch along the pipeline, over its slowest link."""
        if self.pipeline == 1:
            return 0.0
        hop, machine = self.tensor * self.data, self.links.per_machine
        first = max(0, machine - hop) if self.pipeline * hop > machine else 0  # the slowest hop leaves the machine
        return 2 * (self._cost("send", 2 * self.width * self.tokens, [first, first + hop]) + self.program.send_s)

    def _compute_s(self, flops_a_second: float, bandwidth: float) -> float:
        """Return the seconds of a micro-batch on one rank."""
        again = 4 / 3 if self.recompute else 1
        copied = {2: 4, 3: 12}.get(self.stage, 6 if self.micro > 1 else 0) * self.parameters
        products = 6 * self.layer * self.here * again + 6 * self.outer / self.pipeline
        scores = (18 if self.recompute else 14) * self.sequence * self.width / self.tensor * self.here
        logits = 35 * self.vocabulary / self.tensor / self.pipeline
        moved = (56 + 78 / self.tensor) * self.width * self.here * again + logits
        return self.tokens * ((products + scores) / flops_a_second + moved / bandwidth) + copied / bandwidth

    def _data_s(self, work: float) -> float:
        """Return the seconds of messages among data ranks that no computation hides."""
        group, size = range(0, self.tensor * self.data, self.tensor), 2 * self.parameters
        gather = lambda nbytes: self._cost("all_gather", nbytes / self.data, group)  # noqa: E731
        reduce = lambda nbytes: self._cost("reduce_scatter", nbytes, group)  # noqa: E731
        behind = self.program.hidden * work
        if self.stage == 3:
            ends = gather(2 * (self.layer + self.outer)) + reduce(2 * (self.layer + self.outer))
            return self.micro * max(ends, 2 * gather(size) + reduce(size) - work)
        if self.stage == 0:
            return max(0.0, self._cost("all_reduce", size, group) - behind)
        seen = max(0.0, reduce(size) - behind)
        return seen * (self.micro if self.stage == 2 else 1) + gather(size)

    def _cost(self, kind: str, nbytes: float, ranks: Sequence[int]) -> float:
        """Return the seconds of a collective or message of a rank's part of `nbytes`."""
        seconds = self.links.cost(kind, round(nbytes), ranks)[0] / 1e9
        machines, n = self.links.machines(ranks), len(ranks)
        if machines < 2 or kind not in self.program.rates:
            return seconds
        rates = self.program.rates[kind]
        position = min(math.log2(machines), len(rates) - 1)
        low = min(int(position), len(rates) - 2)
        whole = rates[low] + (position - low) * (rates[low + 1] - rates[low])
        gbps = whole * min(1.0, n / machines / self.links.per_machine)  # fewer GPUs use fewer of the adapters
        sent = {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1, "reduce_scatter": (n - 1) / n}[kind] * nbytes
        return max(seconds, sent / gbps / 1e9)
