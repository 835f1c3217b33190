"""Published measurements of split models beside the formulas of `plans`.

`measured.csv` holds the 3,231 ways that Hugging Face tried for its Ultra-Scale Playbook (2025; Apache License 2.0):
four models like Llama, each on 1 to 64 machines with 8 H100, in bfloat16 with AdamW, 256 sequences of 4,096 tokens a
step. The rows are those of its interactive plot `benchmarks_interactive.html`. A way that was measured more than once
stands here with its fastest run, one whose sizes contradict each other not at all. A row without numbers ran out of
memory or crashed. Sizes of the models: `scripts/scaling_benchmarks.py` of nanotron, the program that ran.
https://huggingface.co/spaces/nanotron/ultrascale-playbook
https://github.com/huggingface/nanotron/blob/2411b022a75fb7f7561a1bb4166706da5e1b76de/scripts/scaling_benchmarks.py

`NANOTRON` says how that program differs from `plans.IDEAL`. Its collectives have the rates that the playbook measured
between its machines. The other five numbers are chosen so that the median error of the models 1B and 8B is least
(`python -m benchmarks.splits --fit`); 3B and 80B try them. Four kinds of runs are left out there, and named by `kind`:
they took two to ten times as long, and nobody published why. (The last kind took 0.4 to 1 s longer for each
micro-batch, whatever the model.)
"""

import csv
import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import simgpu
from gpu_course.lesson10 import plans

__all__ = ["FITTED", "LEFT_OUT", "MODELS", "NANOTRON", "Run", "best", "ended", "error", "regrets", "runs", "slowdown"]

SEQUENCE, SEQUENCES = 4096, 256
CLUSTER = simgpu.Cluster("H100 SXM", 8, "NVLink", "InfiniBand")  # the playbook's machines have EFA at the same 400 Gb/s
FITTED = ("1B", "8B")
LEFT_OUT = (
    "more than 70 GB", "pipeline without ZeRO", "tensor ranks in several machines", "three splits, 256 GPUs or more",
)  # fmt: skip


def _llama(layers: int, width: int, heads: int, wide: int, *, tied: bool) -> dict[str, int | bool]:
    numbers = 4 * width**2 + 3 * width * wide
    return {
        "layers": layers, "width": width, "heads": heads, "vocabulary": 131_072, "numbers": numbers, "tied": tied,
    }  # fmt: skip


MODELS = {
    "1B": _llama(16, 2048, 32, 8192, tied=True),
    "3B": _llama(28, 3072, 32, 8192, tied=True),
    "8B": _llama(32, 4096, 32, 14336, tied=False),
    "80B": _llama(80, 8192, 64, 28672, tied=False),
}
NANOTRON = plans.ProgramCosts(
    share=0.6, layer_s=0.5e-3, split_layer_s=4e-3, send_s=2e-3, hidden=0.5,
    rates={  # GB/s over 1, 2, 4, … 64 machines: the means of its plot pp_comm_bandwidth.html
        "all_reduce": (436.0, 361.7, 160.1, 99.6, 84.7, 64.9, 32.9),
        "all_gather": (249.8, 184.6, 119.0, 69.0, 55.0, 28.0, 11.0),
        "reduce_scatter": (249.7, 181.6, 115.8, 68.6, 54.5, 27.9, 11.1),
    },
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One way to split that was tried: the ranks along the mesh, and what was measured, or nothing where it failed.

    A micro-batch is `each` sequences; a rank works on `micro` of them in a step. `tokens_per_s` is of each GPU,
    `memory_gb` of the fullest.
    """

    model: str
    gpus: int
    data: int
    tensor: int
    pipeline: int
    stage: int
    each: int
    micro: int
    tokens_per_s: float | None
    memory_gb: float | None

    way = property(lambda s: (s.data, s.tensor, s.pipeline, s.stage), doc="Ranks along the mesh, and the ZeRO stage.")

    @property
    def step_s(self) -> float:
        """Measured seconds of a step; infinite where the run failed."""
        return SEQUENCES * SEQUENCE / self.tokens_per_s / self.gpus if self.tokens_per_s else float("inf")

    @property
    def kind(self) -> str:
        """What is split, "data" say or "tensor and pipeline", or one of `LEFT_OUT`."""
        if self.memory_gb and self.memory_gb > 70:
            return LEFT_OUT[0]
        if self.pipeline > 1 and self.stage == 0 and self.data > 1 and self.gpus > CLUSTER.per_machine:
            return LEFT_OUT[1]
        if self.tensor > CLUSTER.per_machine:
            return LEFT_OUT[2]
        if self.gpus > 128 and min(self.data, self.tensor, self.pipeline) > 1:
            return LEFT_OUT[3]
        return " and ".join(name for name in ("data", "tensor", "pipeline") if getattr(self, name) > 1)

    def predicted_s(self, program: plans.ProgramCosts = NANOTRON) -> float:
        """Return the seconds of a step by the formulas of `plans`."""
        rank = plans.Rank(
            CLUSTER, self.data, self.tensor, self.pipeline, self.stage, self.micro, recompute=False,
            **MODELS[self.model], sequence=SEQUENCE, each=self.each, program=program,
        )  # fmt: skip
        return sum(rank.times().values())


@functools.cache
def runs(model: str = "", gpus: int = 0) -> tuple[Run, ...]:
    """Return the runs of `measured.csv`, or those of one model, or on so many GPUs."""
    with Path(__file__).with_name("measured.csv").open(encoding="utf-8", newline="") as file:
        every = [_run(row) for row in csv.DictReader(file)]
    return tuple(run for run in every if model in ("", run.model) and gpus in (0, run.gpus))


def _run(row: dict[str, str]) -> Run:
    model, *whole, tokens_per_s, memory_gb = row.values()
    return Run(model, *map(int, whole), *(float(text) if text else None for text in (tokens_per_s, memory_gb)))


@functools.cache
def ended() -> tuple[Run, ...]:
    """Return the runs that came to an end."""
    return tuple(run for run in runs() if run.tokens_per_s)


def slowdown(kind: str, program: plans.ProgramCosts) -> float:
    """Return the median of measured through predicted seconds, of the runs of one `kind` that came to an end."""
    return statistics.median(run.step_s / run.predicted_s(program) for run in ended() if run.kind == kind)


def regrets(program: plans.ProgramCosts) -> dict[tuple[str, int], float]:
    """Return for each model and number of GPUs how many times as long as the fastest the first choice took."""
    sweeps = defaultdict(list)
    for run in ended():
        sweeps[run.model, run.gpus].append(run)
    choices = {size: min(found, key=lambda run: run.predicted_s(program)) for size, found in sweeps.items()}
    return {size: choice.step_s / best(sweeps[size]).step_s for size, choice in choices.items()}


def error(ratios: Iterable[float]) -> float:
    """Return the median of how far these ratios are from 1, as a factor: 1.1 says that half are within 10 %."""
    return math.exp(statistics.median(abs(math.log(ratio)) for ratio in ratios))


def best(found: Iterable[Run]) -> Run:
    """Return the fastest run."""
    return min(found, key=lambda run: run.step_s)
