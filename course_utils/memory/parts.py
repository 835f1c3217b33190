"""Whose are the bytes that are alive? The five owners of memory in training, as numbers, a table and a bar."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["OWNERS", "Parts", "bar", "table_html", "table_text"]

OWNERS = ("parameters", "gradients", "optimizer", "activations", "temporaries")
_NAMES = {"optimizer": "optimizer state"}


@dataclass(frozen=True)
class Parts:
    """Bytes by owner at one moment.

    - parameters: those of the modules, and their buffers;
    - gradients: what `.grad` of the parameters refers to;
    - optimizer: what the optimizer keeps from step to step;
    - activations: the batch, and all that the forward pass made (also when it is recomputed in the backward pass);
    - temporaries: what the backward pass and the optimizer's step made besides.
    """

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    activations_bytes: int = 0
    temporaries_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return sum(self.by_owner().values())

    def by_owner(self) -> dict[str, int]:
        """Return the bytes by owner's name, in fixed order."""
        return {owner: getattr(self, f"{owner}_bytes") for owner in OWNERS}

    @classmethod
    def of(cls, by_owner: Mapping[str, int]) -> Parts:
        return cls(**{f"{owner}_bytes": by_owner.get(owner, 0) for owner in OWNERS})


def table_text(heads: Sequence[str], rows: list[tuple[str, list[str]]], left: Collection[str] = ()) -> str:
    """Return a table of text: a name and cells in each row; the columns named in `left` begin at the left."""
    lines = [tuple(heads), *((_NAMES.get(name, name), *cells) for name, cells in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    left = {heads[0], *left}
    return "\n".join(
        "  ".join(
            text.ljust(width) if head in left else text.rjust(width)
            for head, text, width in zip(heads, line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def table_html(
    caption: str, heads: Sequence[str], rows: list[tuple[str, list[str]]], left: Collection[str] = ()
) -> str:
    """Return the same table for a notebook."""
    sides = ["left" if head in {heads[0], *left} else "right" for head in heads]

    def row(tag: str, line: Sequence[str]) -> str:
        cells = zip(sides, line, strict=True)
        return "".join(f"<{tag} style='text-align: {side}'>{html.escape(text)}</{tag}>" for side, text in cells)

    lines = [row("th", heads), *(row("td", (_NAMES.get(name, name), *cells)) for name, cells in rows)]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    title = f"<caption style='text-align: left'>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{body}</table>"


def bar(bars: Mapping[str, tuple[Parts, str]], title: str, other: Mapping[str, int] | None = None) -> Any:
    """Return a figure with one horizontal stacked bar for each name in `bars`; values are (parts, "live" or such)."""
    from course_utils import plots

    fig, axes = plots.new(title, "MiB alive", height_in=1.3 + 0.45 * len(bars))
    colours = dict(zip(OWNERS, plots.PALETTE, strict=False)) | {"other": plots.MUTED}
    lines = {label: provenance for provenance, label in plots.PROVENANCE.items()}
    names = list(bars)[::-1]
    for place, name in enumerate(names):
        parts, label = bars[name]
        start = 0.0
        for owner, size in [*parts.by_owner().items(), ("other", (other or {}).get(name, 0))]:
            width = max(size, 0) / 2**20
            axes.barh(
                place, width, left=start, height=0.6, color=colours[owner], edgecolor="white", linewidth=0.5,
                hatch=plots.hatch(lines[label]),
            )  # fmt: skip
            start += width
    axes.set_yticks(range(len(names)), [plots.label(name, lines[bars[name][1]]) for name in names])
    axes.grid(visible=False, axis="y")
    from matplotlib.patches import Patch

    shown = [*OWNERS, "other"] if any((other or {}).values()) else OWNERS
    handles = [Patch(color=colours[owner], label=_NAMES.get(owner, owner)) for owner in shown]
    with plots.style():
        fig.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return fig
