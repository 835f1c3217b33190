"""Which GPU suits a job? Memory needed against memory there, and the time of one step from data-sheet rates.

Questions for the reader: (1) Train 1 billion parameters in fp32: which is the smallest memory that holds them? Move to
bf16: why does less change than you hoped? (2) Set the job to generating text: which number of the data sheet orders the
GPUs now, the rate or the bandwidth?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_utils import gpus, plots
from course_utils.explorers import Choice, Explorer, Slider

__all__ = ["BYTES", "JOBS", "Candidate", "Choices", "choose", "explore"]

JOBS = ("training", "generating text")
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_ADAM_BYTES = 8  # two float32 states a parameter
_MASTER_BYTES = 4  # mixed precision keeps the weights in float32 as well as the copy that computes


@dataclass(frozen=True)
class Candidate:
    """One GPU for the job: does it fit, and how long does a step take at data-sheet rates?"""

    name: str
    memory_gib: float
    fits: bool
    compute_s: float | None  # None: the data sheet states no rate for this format
    memory_s: float
    power_w: int | None

    @property
    def step_s(self) -> float | None:
        """Time of one step in seconds: the longer of arithmetic and memory traffic; None if the format is missing."""
        return None if self.compute_s is None else max(self.compute_s, self.memory_s)

    @property
    def bound(self) -> str:
        """Return what limits the step: compute or bandwidth."""
        return "compute" if self.compute_s is not None and self.compute_s >= self.memory_s else "bandwidth"


@dataclass(frozen=True)
class Choices:
    """All GPUs for one job, those that fit first, the fastest first."""

    job: str
    parameters: float
    fmt: str
    tokens: int
    need_gib: float
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """Return the fastest GPU that holds the job, or None."""
        first = self.candidates[0]
        return first if first.fits and first.step_s is not None else None


def need_bytes(job: str, parameters: float, fmt: str) -> float:
    """Return bytes for weights, and in training also for gradients and Adam's two states; activations come on top.

    In mixed precision weights and gradients that compute are in `fmt`, beside float32 weights (Micikevicius et al.
    2018, https://arxiv.org/abs/1710.03740, section 3.1).
    """
    size = BYTES[fmt]
    if job == "generating text":
        return parameters * size
    return parameters * (2 * size + _ADAM_BYTES + (_MASTER_BYTES if size < 4 else 0))


def choose(*, job: str, parameters: float, fmt: str, tokens: int, watts: int | None = None) -> Choices:
    """Rank the GPUs of `gpus.ALL`, with at most `watts` of power if given, for one step over `tokens` tokens.

    A step of training takes 6 FLOPs a parameter and token, generating 2 (Kaplan et al. 2020, https://arxiv.org/abs/2001.08361,
    section 2.1). Memory traffic: training reads and writes everything once, generating reads the weights once a step,
    in which each of `tokens` sequences gets one token.
    """
    if job not in JOBS:
        raise ValueError(f"job is {job!r}, it may be one of: {', '.join(JOBS)}")
    if fmt not in BYTES:
        raise ValueError(f"fmt is {fmt!r}, it may be one of: {', '.join(BYTES)}")
    if parameters <= 0 or tokens < 1:
        raise ValueError(f"parameters and tokens must be positive, not {parameters!r} and {tokens!r}")
    need = need_bytes(job, parameters, fmt)
    flops = (6 if job == "training" else 2) * parameters * tokens
    traffic = 2 * need if job == "training" else need
    found = []
    for gpu in gpus.ALL:
        if watts is not None and (gpu.power_w is None or gpu.power_w > watts):
            continue
        peak = gpu.peak_tflops.get(fmt)
        compute_s = None if peak is None else flops / (peak * 1e12)
        memory_s = traffic / (gpu.bandwidth_gbps * 1e9)
        found.append(
            Candidate(gpu.name, gpu.memory_bytes / 2**30, need <= gpu.memory_bytes, compute_s, memory_s, gpu.power_w)
        )
    found.sort(key=lambda c: (not c.fits, c.step_s is None, c.step_s or 0.0, c.name))
    return Choices(job, parameters, fmt, tokens, need / 2**30, tuple(found))


def describe(choices: Choices) -> str:
    """Return the answer in words."""
    size = plots.count_text(choices.parameters)
    head = f"{choices.job} with {size} parameters in {choices.fmt} needs {choices.need_gib:.1f} GiB before activations"
    if choices.best is None:
        return f"{head}: no GPU of the table holds it and computes in this format. Predicted from data sheets."
    fit = sum(c.fits for c in choices.candidates)
    best = choices.best
    return (
        f"{head}: {fit} of {len(choices.candidates)} GPUs hold it. Fastest: {best.name}, "
        f"{plots.seconds_text(best.step_s)} a step, limited by {best.bound}. Predicted from data sheets."
    )


def draw(choices: Choices) -> Any:
    """Return the picture: memory of each GPU against the need, and the time of a step where it fits."""
    height = 1.1 + 0.21 * len(choices.candidates)
    title = f"{choices.job.capitalize()}, {plots.count_text(choices.parameters)} parameters, {choices.fmt}"
    figure, (left, right) = plots.new(title, "memory (GiB); red line: needed", height_in=height, columns=2, log="x")
    rows = list(choices.candidates)[::-1]
    places = range(len(rows))
    colours = [plots.BLUE if row.fits else plots.GRID for row in rows]
    left.barh(places, [row.memory_gib for row in rows], color=colours, height=0.7)
    left.axvline(choices.need_gib, color=plots.RED, linewidth=1.5)
    left.set_yticks(places, [row.name for row in rows])
    times = [row.step_s * 1e3 if row.fits and row.step_s is not None else float("nan") for row in rows]
    shades = [plots.GREEN if row.bound == "compute" else plots.OCHRE for row in rows]
    right.barh(places, times, color=shades, height=0.7, hatch=plots.hatch(plots.PREDICTED), edgecolor="white")
    right.set_yticks(places, [""] * len(rows))
    right.set_xlabel("time of a step (ms), predicted\nlimited by compute (green) or bandwidth")
    for place, row in zip(places, rows, strict=True):
        if not row.fits or row.step_s is None:
            why = f"no {choices.fmt} rate stated" if row.fits else "does not fit"
            right.text(0.02, place, why, transform=right.get_yaxis_transform(), va="center", fontsize=8)
    for axes in (left, right):
        axes.grid(False, axis="y")
        axes.set_ylim(-0.6, len(rows) - 0.4)
    return figure


_SIZES = tuple(m * 10**e for e in (7, 8, 9, 10, 11) for m in (1, 3))


def explore() -> Explorer:
    """Return the explorer of lesson 01."""
    return Explorer(
        "choose a GPU for a job",
        choose,
        draw,
        describe,
        [
            Choice("job", "Job", JOBS, "training"),
            Slider("parameters", "Parameters", _SIZES, 10**9, plots.count_text),
            Choice("fmt", "Number format", tuple(BYTES), "fp32"),
            Slider("tokens", "Tokens a step", tuple(2**n for n in range(0, 15, 2)), 4096, lambda n: f"{n:,}"),
            Choice(
                "watts", "Power", (None, 75, 150, 300, 450), None, lambda w: "any" if w is None else f"at most {w} W"
            ),
        ],
    )
