"""How many groups should be checkpointed? Bytes kept for the backward pass against what is computed twice.

A model of equal Transformer blocks is cut into groups, as `torch.utils.checkpoint.checkpoint_sequential` does it: of
each group but the last only the input is kept, and the rest is computed again in the backward pass. The idea is that
of Chen et al. 2016, https://arxiv.org/abs/1604.06174; what a block keeps is counted as in `will_it_fit`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course_utils import arguments, plots
from gpu_course.explorers import Choice, Explorer, Slider
from gpu_course.lesson07.explorers.fit_moments import FORMATS, Setting, kept_bytes

__all__ = ["Checkpointing", "checkpointing", "explore"]

LENGTHS = (1, 2, 3, 4, 6, 12)  # blocks in a group: each divides every number of layers of the controls


@dataclass(frozen=True)
class Checkpointing:
    """What equal groups keep and cost; a block keeps `block_bytes`, of which its input is `input_bytes`."""

    layers: int
    length: int  # blocks in a group
    tokens: int
    width: int
    block_bytes: int
    input_bytes: int
    measured: tuple[tuple[int, int, float], ...] = ()  # (groups, bytes kept, milliseconds of a step)
    label: str = ""

    groups = property(lambda self: self.layers // self.length)

    def kept_bytes(self, groups: int) -> int:
        """Return the bytes alive when backward begins: the inputs of all groups but the last, and all of the last."""
        return (groups - 1) * self.input_bytes + self.layers // groups * self.block_bytes

    def recomputed(self, groups: int) -> float:
        """Return which share of the forward pass is computed twice: all groups but the last."""
        return (groups - 1) / groups

    def step_factor(self, groups: int) -> float:
        """Return FLOPs of a step over those without checkpointing; backward takes twice the FLOPs of forward."""
        return 1 + self.recomputed(groups) / 3

    @property
    def choices(self) -> tuple[int, ...]:
        """Return the numbers of groups that divide the layers, and so can be drawn."""
        return tuple(n for n in range(1, self.layers + 1) if self.layers % n == 0)

    best = property(lambda c: min(c.choices, key=c.kept_bytes), doc="The number of groups that keeps least.")


def checkpointing(
    *, layers: int, length: int, tokens: int, width: int, heads: int = 4, fmt: str = "fp32",
    measured: Mapping[int, tuple[int, float]] | None = None, of: Mapping[str, Any] | None = None, label: str = "",
) -> Checkpointing:  # fmt: skip
    """Return what groups of `length` blocks keep and cost, for `tokens` tokens in all rows together, predicted.

    `measured` holds (bytes kept, milliseconds of a step) by number of groups, of a model with the settings `of`, and
    `label` says on what; it is shown where the settings are the same. Raises ValueError where `length` does not divide
    `layers`.
    """
    if layers % length:
        raise ValueError(f"length is {length} and layers is {layers}; layers must be a multiple of length")
    given = {"layers": layers, "width": width, "heads": heads, "fmt": fmt}
    setting = Setting(**given, sequence=tokens, vocabulary=1, batch=1, accumulation=1, gpus=1, optimizer="SGD", stage=0,
                      checkpointing=False, fused=True)  # fmt: skip
    by_groups = arguments.mapping("measured", measured, "(bytes, milliseconds) by groups")
    same = all({**given, "tokens": tokens}.get(name) == value for name, value in (of or {}).items())
    rows = tuple((n, *by_groups[n]) for n in sorted(by_groups)) if same else ()
    return Checkpointing(layers, length, tokens, width, *kept_bytes(setting), rows, label)


def describe(c: Checkpointing) -> str:
    """Return the result in words."""
    kept, without = c.kept_bytes(c.groups), c.kept_bytes(1)
    return (
        f"{c.layers} blocks of width {c.width}, {c.tokens:,} tokens, {c.groups} groups of {c.length} "
        f"block{'s' if c.length > 1 else ''}: "
        f"{plots.bytes_text(kept)} are kept of {plots.bytes_text(without)}, {c.recomputed(c.groups):.0%} of the "
        f"forward pass is computed twice, and a step takes {c.step_factor(c.groups) - 1:.0%} more FLOPs. Least is "
        f"kept with {c.best} groups: {plots.bytes_text(c.kept_bytes(c.best))}. Predicted"
        + (f"; crosses are {c.label}." if c.measured else ".")
    )


def draw(c: Checkpointing) -> Any:
    """Return the picture: bytes kept and the cost of a step against groups, with the measured ones."""
    titles = ("Kept for the backward pass", "Cost of a step")
    figure, (left, right) = plots.new(titles, "groups", columns=2, log="x", height_in=3.6)
    mib = [c.kept_bytes(n) / 2**20 for n in c.choices]
    factors = [c.step_factor(n) for n in c.choices]
    if c.measured:
        counts, sizes, times_ms = zip(*c.measured, strict=True)
        look = {"color": plots.OCHRE, "marker": "x", "markersize": 9, "markeredgewidth": 2, "linestyle": ""}
        left.plot(counts, [size / 2**20 for size in sizes], label=c.label, **look)
        if counts[0] == 1:
            right.plot(counts, [ms / times_ms[0] for ms in times_ms], label=f"time, {c.label}", **look)
    plots.line(left, c.choices, mib, "formula", plots.PREDICTED, color=plots.BLUE, marker=".")
    plots.line(right, c.choices, factors, "FLOPs", plots.PREDICTED, color=plots.BLUE, marker=".")
    left.plot([c.groups], [c.kept_bytes(c.groups) / 2**20], "o", color=plots.RED, markersize=9, label="this choice")
    right.plot([c.groups], [c.step_factor(c.groups)], "o", color=plots.RED, markersize=9)
    left.set(ylabel="MiB", ylim=(0, None))
    slowest = max([ms / c.measured[0][2] for *_, ms in c.measured], default=1.0)
    right.set(ylabel="times a plain step", ylim=(0.95, max(1.5, slowest * 1.05)))
    for axes in (left, right):
        axes.set_xticks(c.choices, [str(n) for n in c.choices])
        axes.set_xticks([], minor=True)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False, fontsize=8.5)
    return figure


def explore(
    measured: Mapping[int, tuple[int, float]] | None = None, of: Mapping[str, Any] | None = None, label: str = ""
) -> Explorer:
    """Return the explorer of lesson 07; its first setting is `of`, that of what was measured, as in `checkpointing`.

    Raises ValueError or TypeError that names a wrong argument.
    """
    first = {"layers": 12, "tokens": 4096, "width": 768, "heads": 4, "fmt": "fp32", **(of or {})}
    fixed = {"measured": measured, "of": of, "label": label, "heads": first["heads"]}
    pick = lambda name, *values: tuple(sorted({*values, first[name]}))  # noqa: E731
    controls = [
        Slider("length", "Blocks in a group", LENGTHS, 1),
        Slider("layers", "Blocks", pick("layers", 12, 24, 48, 96), first["layers"]),
        Slider("tokens", "Tokens", pick("tokens", 1024, 4096, 16384, 65536), first["tokens"]),
        Slider("width", "Width", pick("width", 128, 768, 2048, 4096), first["width"]),
        Choice("fmt", "Number format", tuple(FORMATS), first["fmt"]),
    ]
    return Explorer("groups, memory and recomputation", checkpointing, draw, describe, controls, fixed)
