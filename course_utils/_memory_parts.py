"""Whose are the bytes that are alive? The five owners of memory in training, as numbers, a table and a bar."""

from __future__ import annotations

import html
from collections.abc import Mapping
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


def table_text(heads: list[str], rows: list[tuple[str, list[str]]]) -> str:
    """Return a table of text: a name and cells in each row, numbers to the right."""
    names = [_NAMES.get(name, name) for name, _ in rows]
    left = max(len(name) for name in [heads[0], *names])
    widths = [max(len(cells[i]) for cells in [heads[1:], *(row for _, row in rows)]) for i in range(len(heads) - 1)]
    lines = [(heads[0], heads[1:]), *zip(names, [cells for _, cells in rows], strict=True)]
    return "\n".join(
        "  ".join([name.ljust(left), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))]).rstrip()
        for name, cells in lines
    )


def table_html(caption: str, heads: list[str], rows: list[tuple[str, list[str]]]) -> str:
    """Return the same table for a notebook."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr><th style='text-align: left'>{html.escape(_NAMES.get(name, name))}</th>"
        + "".join(f"<td style='text-align: right'>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, cells in rows
    )
    return f"<table><caption style='text-align: left'>{html.escape(caption)}</caption><tr>{head}</tr>{body}</table>"


def bar(bars: Mapping[str, tuple[Parts, str]], title: str, other: Mapping[str, int] | None = None) -> Any:
    """Return a figure with one horizontal stacked bar for each name in `bars`; values are (parts, provenance)."""
    from course_utils import plots

    fig, axes = plots.new(title, "MiB alive", height_in=1.3 + 0.45 * len(bars))
    colours = dict(zip(OWNERS, plots.PALETTE, strict=False)) | {"other": plots.MUTED}
    names = list(bars)[::-1]
    for place, name in enumerate(names):
        parts, provenance = bars[name]
        start = 0.0
        for owner, size in [*parts.by_owner().items(), ("other", (other or {}).get(name, 0))]:
            width = max(size, 0) / 2**20
            axes.barh(
                place, width, left=start, height=0.6, color=colours[owner], edgecolor="white", linewidth=0.5,
                hatch=plots.hatch(provenance),
            )  # fmt: skip
            start += width
    axes.set_yticks(range(len(names)), [plots.label(name, bars[name][1]) for name in names])
    axes.grid(visible=False, axis="y")
    from matplotlib.patches import Patch

    shown = [*OWNERS, "other"] if any((other or {}).values()) else OWNERS
    handles = [Patch(color=colours[owner], label=_NAMES.get(owner, owner)) for owner in shown]
    with plots.style():
        fig.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return fig
