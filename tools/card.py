"""Card of symptoms on one page, to print: which tool first, and the usual cause.

python tools/card.py     write docs/what_is_wrong.svg and docs/what_is_wrong.pdf

Both hold the digest of what they were made from, so that a test sees when they are old.
"""

import hashlib
import textwrap
from pathlib import Path
from typing import Any, cast

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils import plots
from gpu_course.lesson11.explorers import symptoms

__all__ = ["digest", "draw"]

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH_IN, HEIGHT_IN = 11.69, 8.27  # A4, lying
COLOURS = {  # of the head, of the boxes, of the tools in them
    "crash": (plots.RED, "#fbdfcc", "#8a3a00"), "wrong": (plots.OCHRE, "#f2e6cc", "#6b4a00"),
    "stuck": (plots.BLUE, "#cce3f0", "#00497a"),
}  # fmt: skip
LOOK = {"font.family": "DejaVu Sans", "svg.fonttype": "none", "svg.hashsalt": "card", "pdf.fonttype": 42}


def digest() -> str:
    """Return the digest of the table and of this file: what the card shows, and how."""
    sources = (Path(symptoms.__file__).with_suffix(".toml"), Path(__file__))
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    return f"made from {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def draw() -> Figure:
    """Return the card: a column for each kind, in it a box for each symptom."""
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH_IN), ylim=(0, HEIGHT_IN))
    axes.axis("off")
    axes.text(0.4, 7.94, "What is wrong?", fontsize=17, fontweight="bold", va="center")
    rule = "One change at a time. The smallest program that still fails. Read the first error, not the last."
    axes.text(WIDTH_IN - 0.4, 7.94, rule, fontsize=8.5, color=plots.MUTED, va="center", ha="right")
    for place, (kind, words) in enumerate(symptoms.KINDS.items()):
        _column(axes, 0.4 + place * 3.66, words[0].upper() + words[1:], kind)
    foot = "Symptom, the tool to take first, the usual causes, the lesson of the course that explains it."
    axes.text(0.4, 0.25, foot, fontsize=7.5, color=plots.MUTED, va="center")
    return figure


def _column(axes, left: float, title: str, kind: str) -> None:
    dark, pale, ink = COLOURS[kind]
    axes.add_patch(Rectangle((left, 7.38), 3.55, 0.32, facecolor=dark, edgecolor="none"))
    axes.text(left + 0.12, 7.54, title, fontsize=11, fontweight="bold", color="white", va="center")
    rows = symptoms.TABLE[kind].values()
    step = 6.93 / len(rows)
    for place, row in enumerate(rows):
        top = 7.31 - place * step
        axes.add_patch(Rectangle((left, top - step + 0.07), 3.55, step - 0.07, facecolor=pale, edgecolor="none"))
        axes.text(left + 0.1, top - 0.11, row.symptom, fontsize=8.3, fontweight="bold", va="center")
        axes.text(left + 3.46, top - 0.11, row.lesson, fontsize=7.5, color=plots.MUTED, va="center", ha="right")
        tool = textwrap.fill(row.tool, 58)
        axes.text(left + 0.1, top - 0.185, tool, fontsize=7.6, color=ink, va="top", linespacing=1.25)
        causes = textwrap.fill(" · ".join(row.causes), 60)
        below = top - 0.2 - 0.13 * len(tool.splitlines())
        axes.text(left + 0.1, below, causes, fontsize=7.3, va="top", linespacing=1.25)


def main() -> None:
    """Write both files."""
    with rc_context(cast(Any, LOOK)):
        figure = draw()
        title = "What is wrong? Symptoms, first tools, usual causes"
        figure.savefig(DOCS / "what_is_wrong.svg", metadata={"Title": title, "Description": digest(), "Date": None})
        figure.savefig(DOCS / "what_is_wrong.pdf", metadata={"Title": title, "Subject": digest(), "CreationDate": None})


if __name__ == "__main__":
    main()
