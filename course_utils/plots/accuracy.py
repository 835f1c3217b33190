"""How far are predicted numbers from measured ones?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from course_utils.plots import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def errors(bar: Any) -> Figure:
    """Return the picture of a `timing.ErrorBar`: simulated against measured images a second.

    Inference stands on the left and training on the right, each with its median error; on the line the two are equal.
    """
    modes = {"Inference": False, "Training": True}
    parts = [bar.where(lambda run, wanted=training: run.training == wanted) for training in modes.values()]
    titles = tuple(f"{name}: median error {part.median_error:.0%}" for name, part in zip(modes, parts, strict=True))
    figure, columns = look.new(titles, "images/s, measured", "images/s, simulated", log="xy", height_in=3.6, columns=2)
    colours = dict(zip(dict.fromkeys(run.gpu for run in bar.runs), look.PALETTE, strict=False))
    for axes, part in zip(columns, parts, strict=True):
        for gpu in [gpu for gpu in colours if any(run.gpu == gpu for run in part.runs)]:
            runs = [run for run in part.runs if run.gpu == gpu]
            measured, predicted = [run.measured for run in runs], [run.predicted for run in runs]
            axes.plot(measured, predicted, ".", color=colours[gpu], markersize=3, alpha=0.6, label=gpu)
        ends = axes.get_xlim()
        axes.plot(ends, ends, color=look.INK, linewidth=0.8)
        axes.set_xlim(ends)
        look.legend(axes, handlelength=1, markerscale=3)
    return figure
