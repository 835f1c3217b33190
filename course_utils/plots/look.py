"""Common style of all figures, and their display in a cell."""

from __future__ import annotations

import base64
import contextlib
import functools
import html
import io
import os
from typing import TYPE_CHECKING, Any

from course_utils.plots.units import plain_decades

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIVE, RECORDED, PREDICTED, SIMULATED = "solid", "dashed", "dotted", "dashdot"
PUBLISHED = (0, (7, 2, 1, 2, 1, 2))  # matplotlib has no name for dash-dot-dot
PROVENANCE = {
    LIVE: "live", RECORDED: "recorded", PREDICTED: "predicted", SIMULATED: "simulated", PUBLISHED: "published",
}  # fmt: skip
_HATCHES = {LIVE: "", RECORDED: "//", PREDICTED: "..", SIMULATED: "xx", PUBLISHED: "oo"}

# After Okabe and Ito, https://jfly.uni-koeln.de/color/; the light ones darkened until they have contrast 3 on white.
BLUE, RED, GREEN, PLUM, OCHRE, SKY = PALETTE = ("#0072b2", "#d55e00", "#008a64", "#a1487b", "#a87400", "#3d93c9")
INK, MUTED, PALE, GRID = "#222222", "#6b6b6b", "#c9c9c9", "#e2e2e2"

_BELOW = {"ncols": 2, "fontsize": 7.5, "handlelength": 2.8, "columnspacing": 1.0}  # two labels of 55 letters fit
_WIDTH_IN, _CSS_PIXELS_PER_INCH, _DPI, _COLOURS = 7.2, 100, 160, 96
_RC = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9.5, "text.color": INK,
    "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 9,
    "axes.labelsize": 9.5, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "axes.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": GRID, "grid.linewidth": 0.8, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "xtick.labelsize": 9, "ytick.labelsize": 9, "xtick.minor.visible": False,
    "ytick.minor.visible": False, "lines.linewidth": 2.0, "lines.markersize": 5, "legend.frameon": False,
    "legend.fontsize": 9, "hatch.linewidth": 0.6, "figure.facecolor": "white", "axes.facecolor": "white",
    "figure.dpi": _DPI, "savefig.dpi": _DPI, "savefig.facecolor": "white", "axes.unicode_minus": True,
}  # fmt: skip


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Inside this context matplotlib draws in the course's look; afterwards its settings are what they were."""
    import matplotlib
    from cycler import cycler

    settings: dict[Any, Any] = {**_RC, "axes.prop_cycle": cycler(color=PALETTE)}
    with matplotlib.rc_context(settings):
        yield


def new(
    title: str | tuple[str, ...] = "",
    xlabel: str = "",
    ylabel: str = "",
    *,
    log: str = "",
    height_in: float = 3.4,
    columns: int = 1,
    widths: tuple[float, ...] | None = None,
    said: str = "",
) -> tuple[Figure, Any]:
    """Return (figure, axes) in the course's look, 7.2 inches wide; with `columns` > 1, a tuple of axes.

    `title` is the first column's, or a tuple with one for each column. `log` names the logarithmic axes: "", "x", "y"
    or "xy". `widths` are the relative widths of the columns. `said` is the text of the figure where no picture can be
    shown, "Picture(title)" unless given.
    """
    titles = (title, *[""] * (columns - 1)) if isinstance(title, str) else title
    with style():
        fig = _picture_class()(figsize=(_WIDTH_IN, height_in), layout="constrained")
        fig.said = said or f"Picture({titles[0] or 'untitled'})"
        axes = fig.subplots(1, columns, squeeze=False, width_ratios=widths)[0]
        for ax, text in zip(axes, titles, strict=True):
            ax.tick_params(color=MUTED, labelcolor=INK, labelsize=_RC["xtick.labelsize"])
            ax.grid(True, color=GRID, linewidth=_RC["grid.linewidth"])
            for name in log:
                ax.set(**{f"{name}scale": "log"})
                plain_decades({"x": ax.xaxis, "y": ax.yaxis}[name])
            ax.set(xlabel=xlabel, ylabel=ylabel, title=text)
    return (fig, axes[0]) if columns == 1 else (fig, tuple(axes))


def label(name: str, provenance: Any) -> str:
    """Return the legend's text for `name`: what it is and where its numbers come from, as in "T4, predicted"."""
    return f"{name}, {PROVENANCE[checked(provenance)]}" if name else PROVENANCE[checked(provenance)]


def hatch(provenance: Any) -> str:
    """Return the hatch of a bar whose numbers have this provenance; a live bar is plain."""
    return _HATCHES[checked(provenance)]


def line(ax: Axes, x: Any, y: Any, name: str, provenance: Any, **options: Any) -> None:
    """Draw one curve in the style of its provenance, its legend text ending in that word; options go to `Axes.plot`."""
    ax.plot(x, y, **{"linestyle": checked(provenance), "label": label(name, provenance), "linewidth": 2.0, **options})


def stack(
    ax: Axes, names: Sequence[Any], parts: Mapping[str, Sequence[float]], across: bool = False, **options: Any
) -> None:
    """Draw a bar for each of `names`, made of `parts`, its sizes by label, in the order of the palette.

    The parts stand on top of each other, `across` beside each other. `options` go to Matplotlib's bars.
    """
    draw, begin = (ax.barh, "left") if across else (ax.bar, "bottom")
    ends = [0.0] * len(names)
    for colour, (part, sizes) in zip(PALETTE, parts.items(), strict=False):
        draw(names, sizes, color=colour, label=part, **{begin: ends}, **options)
        ends = [end + size for end, size in zip(ends, sizes, strict=True)]


def legend(ax: Axes, **options: Any) -> None:
    """Add the legend in the course's look, below the axes where it names sources; options go to `Axes.legend`."""
    with style():
        handles, labels = ax.get_legend_handles_labels()
        if any(f"{PROVENANCE[PUBLISHED]}: " in text for text in labels):
            for old in (*ax.figure.legends, *filter(None, [ax.get_legend()])):
                old.remove()
            ax.figure.legend(handles, labels, loc="outside lower left", **_BELOW)
            return
        ax.legend(**{"loc": "best", "handlelength": 3.2, **options})


def png(fig: Figure) -> bytes:
    """Return the figure as a small PNG: 160 dpi, 96 colours, nothing in it that changes from run to run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    with style():
        canvas = FigureCanvasAgg(fig)
        before, fig.dpi = fig.dpi, _DPI
        canvas.draw()
        size = canvas.get_width_height()
        picture = Image.frombytes("RGBA", size, bytes(canvas.buffer_rgba())).convert("RGB")
        fig.dpi = before
    out = io.BytesIO()
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def _base64(picture: bytes) -> str:
    return base64.b64encode(picture).decode("ascii")


def to_html(fig: Figure, alt: str, drawn: bytes = b"") -> str:
    """Return an `<img>` with the figure and `alt`, the text that says what it shows to those who do not see it.

    `drawn` is its `png`, where that is there already.
    """
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(f"alt was {alt!r}; it may be a sentence that says what the picture shows")
    width, height = _css_size(fig)
    source = f"data:image/png;base64,{_base64(drawn or png(fig))}"
    said = html.escape(alt, quote=True)
    look = "max-width: 100%; height: auto; background: white"
    return f'<img src="{source}" alt="{said}" width="{width}" height="{height}" style="{look}">'


def checked(provenance: Any) -> Any:
    if provenance not in tuple(PROVENANCE):
        raise ValueError(
            f"provenance was {provenance!r}; it may be plots.LIVE, RECORDED, PREDICTED, SIMULATED or PUBLISHED"
        )
    return provenance


def _css_size(fig: Figure) -> tuple[int, int]:
    return tuple(round(inches * _CSS_PIXELS_PER_INCH) for inches in fig.get_size_inches())


@functools.cache
def _picture_class() -> type:
    """Return the class of our figures, made at first use so that importing this module does not load matplotlib."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that shows itself once, in the course's look, with a line of text that never changes."""

        said: str

        def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[dict, dict]:
            if "JPY_SESSION_NAME" in os.environ:  # a page of Jupyter, which gives a picture of itself no words
                return {"text/html": to_html(self, repr(self)), "text/plain": repr(self)}, {}
            width, height = _css_size(self)
            shown = {"image/png": _base64(png(self)), "text/plain": repr(self)}
            return shown, {"image/png": {"width": width, "height": height}}

        def __repr__(self) -> str:
            return self.said

    return Picture
