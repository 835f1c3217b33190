"""Which GPU suits a job? Memory needed against memory there, and the time of one step from data-sheet rates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course_utils import arguments, gpus, plots
from gpu_course.explorers import Choice, Explorer, Slider

__all__ = ["BYTES", "JOBS", "Candidate", "Choices", "choose", "explore"]

JOBS = ("training", "generating text")
BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}  # of a number in memory; TF32 rounds only inside a product
_ADAM_BYTES = 8  # two float32 states a parameter
_LEGEND = {"compute": "arithmetic", "bandwidth": "memory traffic"}  # what bounds a step, in the words of the picture
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

    bound = property(lambda c: "bandwidth" if (c.compute_s or 0) < c.memory_s else "compute", doc="What limits a step.")


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
        return next((c for c in self.candidates[:1] if c.fits and c.step_s is not None), None)


def choose(*, job: str, parameters: float, fmt: str, tokens: int, watts: float = math.inf) -> Choices:
    """Rank the GPUs of `gpus.ALL`, with at most `watts` of power, for one step over `tokens` tokens.

    Needed are the bytes of the weights, and in training also of gradients and Adam's two states; activations come on
    top. In mixed precision weights and gradients that compute are in `fmt`, beside float32 weights (Micikevicius et al.
    2018, https://arxiv.org/abs/1710.03740, section 3.1). A step of training takes 6 FLOPs a parameter and token,
    generating 2 (Kaplan et al. 2020, https://arxiv.org/abs/2001.08361, section 2.1). Memory traffic: training reads and
    writes everything once, generating reads the weights once a step, in which each of `tokens` sequences gets one
    token. Raises ValueError or TypeError that names a wrong argument.
    """
    size = BYTES[arguments.one_of("fmt", fmt, BYTES)]
    training = arguments.one_of("job", job, JOBS) == "training"
    arguments.whole("tokens", tokens)
    if watts != math.inf:
        arguments.positive("watts", watts)
    each = 2 * size + _ADAM_BYTES + (_MASTER_BYTES if size < 4 else 0) if training else size
    need = arguments.positive("parameters", parameters) * each
    flops = (6 if training else 2) * parameters * tokens
    traffic = 2 * need if training else need
    candidates = []
    for gpu in gpus.ALL:
        if (gpu.power_w or math.inf) > watts:  # infinite: no limit; a dropdown takes no None for a value
            continue
        compute_s = flops / (gpu.peak_tflops[fmt] * 1e12) if fmt in gpu.peak_tflops else None
        memory_s = traffic / (gpu.bandwidth_gbps * 1e9)
        fits = need <= gpu.room_bytes
        candidates.append(Candidate(gpu.name, gpu.room_bytes / 2**30, fits, compute_s, memory_s, gpu.power_w))
    candidates.sort(key=lambda c: (not c.fits, c.step_s is None, c.step_s or 0.0, c.name))
    return Choices(job, parameters, fmt, tokens, need / 2**30, tuple(candidates))


def describe(choices: Choices) -> str:
    """Return the answer in words."""
    best, size = choices.best, plots.count_text(choices.parameters)
    job = f"{choices.job.capitalize()} with {size} parameters in {choices.fmt}"
    head = f"{job} needs {_gib_text(choices.need_gib)}, not counting results of layers and what the driver keeps"
    if best is None:
        return f"{head}: no GPU of this table holds that and computes in {choices.fmt}. Predicted from data sheets."
    fit = sum(c.fits for c in choices.candidates)
    return (
        f"{head}: {fit} of {len(choices.candidates)} GPUs hold that. Fastest: {best.name}, "
        f"{plots.seconds_text(best.step_s)} a step, limited by {_LEGEND[best.bound]}. Predicted from data sheets."
    )


def _gib_text(gib: float) -> str:
    """Return a size in GiB with three digits, or all of a whole number's."""
    return f"{gib:,.0f} GiB" if gib >= 100 else f"{gib:.3g} GiB"


def draw(choices: Choices) -> Any:
    """Return the picture: memory of each GPU against the need, and the two bounds of a step's time where it fits."""
    rows = choices.candidates[::-1]
    enough = any(row.fits for row in rows)
    titles = ("Memory, GiB" if enough else "Memory, GiB: too little", "Time of a step, predicted")
    need = f"red line: {_gib_text(choices.need_gib)} needed"
    figure, (left, right) = plots.new(titles, need, height_in=1.2 + 0.22 * len(rows), columns=2, widths=(5, 6))
    _draw_memory(left, rows, choices.need_gib)
    _draw_times(right, rows, choices.fmt)
    for axes in (left, right):
        axes.set_ylim(-0.7, len(rows) - 0.3)
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
    return figure


def _draw_memory(axes: Any, rows: Sequence[Candidate], need_gib: float) -> None:
    """Draw a bar for each GPU's memory and a line at the need, or at the edge where it lies beyond all of them."""
    shades = [plots.BLUE if row.fits else plots.PALE for row in rows]
    axes.barh(range(len(rows)), [row.memory_gib for row in rows], color=shades, height=0.62)
    names = [f"{row.name}, {row.power_w:g} W" if row.power_w else row.name for row in rows]
    axes.set_yticks(range(len(rows)), names)
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_color(plots.INK if row.fits else plots.MUTED)
    most = max(gpu.room_bytes for gpu in gpus.ALL) / 2**30
    axes.set_xlim(0, most * 1.05)
    axes.axvline(min(need_gib, most * 1.03), color=plots.RED, linewidth=2)


def _draw_times(axes: Any, rows: Sequence[Candidate], fmt: str) -> None:
    """Draw the time of the arithmetic and of the memory traffic of each GPU; the longer is filled and is the step."""
    axes.set_xscale("log")
    plots.axis_seconds(axes.xaxis)
    axes.set_xlabel("the longer time is filled")
    axes.set_yticks([])
    for height, row in enumerate(rows):
        if not row.fits or row.step_s is None:
            lacks = gpus.get(row.name).lacks(fmt)
            why = f"its tensor cores know no {fmt}" if lacks else f"no {fmt} rate is stated"
            why = why if row.fits else "does not fit"
            look = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 8, "color": plots.MUTED}
            axes.text(0.02, height, why, **look)
            continue
        axes.plot([row.compute_s, row.memory_s], [height, height], linestyle=plots.PREDICTED, color=plots.MUTED, lw=1)
        marks = (("compute", row.compute_s, "o", plots.GREEN), ("bandwidth", row.memory_s, "s", plots.OCHRE))
        for bound, seconds, mark, colour in marks:
            fill = colour if row.bound == bound else "white"
            axes.plot([seconds], [height], mark, color=colour, markerfacecolor=fill, markersize=6)
        end = (row.step_s, height)
        axes.annotate(plots.seconds_text(row.step_s), end, (8, 0), textcoords="offset points", va="center", fontsize=8)
    axes.plot([], [], "o", color=plots.GREEN, label=_LEGEND["compute"])
    axes.plot([], [], "s", color=plots.OCHRE, label=_LEGEND["bandwidth"])
    shown = [t for row in rows if row.fits and row.step_s for t in (row.compute_s, row.memory_s)]
    axes.set_xlim(min(shown, default=1e-3) / 2, max(shown, default=1.0) * 8)
    plots.legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, handlelength=1.2)


def explore() -> Explorer:
    """Return the explorer of lesson 01."""
    sizes = tuple(m * 10**e for e in (7, 8, 9, 10, 11) for m in (1, 3))
    limit = lambda watts: "any" if watts == math.inf else f"at most {watts} W"  # noqa: E731
    controls = [
        Choice("job", "Job", JOBS, "training"),
        Slider("parameters", "Parameters", sizes, 10**9, plots.count_text),
        Choice("fmt", "Number format", tuple(BYTES), "bf16"),
        Slider("tokens", "Tokens a step", tuple(2**n for n in range(0, 15, 2)), 4096),
        Choice("watts", "Power limit", (math.inf, 75, 150, 300, 450), math.inf, limit),
    ]
    return Explorer("choose a GPU for a job", choose, draw, describe, controls)
