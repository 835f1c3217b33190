"""Which side of the ridge is a layer on, and how long does it take at least? Machine, number format, layer and sizes.

Questions for the reader: (1) A linear layer of 4,096 on a T4 in fp16: from how many rows on does compute limit it, and
what happens to its time below that? (2) Attention on a T4 in fp16, longer and longer: why does the fused kind cross the
ridge, and the kind that keeps its scores in memory never?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_utils import gpus, plots, recorded, timing
from course_utils.base import arguments
from course_utils.explorers import Choice, Explorer, Slider
from course_utils.explorers.layers import LAYERS

__all__ = ["BYTES", "LAYERS", "Point", "explore", "roofline"]

BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
KEY = "03.roofline"  # under which lesson 03 records curves over the intensity, one a format
_HERE = "this machine"
_BESIDE = ("T4", "A100 80GB", "H200")  # whose roofs are drawn beside the chosen one
_STYLES = {"live": plots.LIVE, "simulated": plots.SIMULATED, "predicted": plots.PREDICTED}


@dataclass(frozen=True)
class Point:
    """One layer on one machine: where it lies under the roof, and the least time that this allows."""

    roof: timing.Roofline
    fmt: str
    layer: str
    size: int
    rows: int
    others: tuple[timing.Roofline, ...] = ()
    recorded: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = ()  # (label, FLOP/byte, TFLOP/s)
    measured: tuple[tuple[str, float, float], ...] = ()  # (name, FLOP/byte, TFLOP/s) of layers on this machine

    @property
    def flops(self) -> int:
        """Operations of the layer."""
        return LAYERS[self.layer].flops(self.rows, self.size)

    @property
    def nbytes(self) -> int:
        """Bytes that the layer reads and writes if it touches each element of its arrays once."""
        return LAYERS[self.layer].elements(self.rows, self.size) * BYTES[self.fmt]

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.nbytes

    @property
    def unit(self) -> str:
        """The format whose rate bounds the arithmetic: float32 for what is no product."""
        return self.fmt if LAYERS[self.layer].matrix else "fp32"

    @property
    def peak_tflops(self) -> float | None:
        """The rate of the arithmetic, None where this machine has none for the format."""
        return self.roof.rates_tflops.get(self.unit)

    @property
    def compute_s(self) -> float | None:
        """Time of the arithmetic alone, in seconds."""
        return None if self.peak_tflops is None else self.flops / (self.peak_tflops * 1e12)

    @property
    def memory_s(self) -> float:
        """Time of the memory traffic alone, in seconds."""
        return self.nbytes / (self.roof.bandwidth_gbps * 1e9)

    @property
    def time_s(self) -> float | None:
        """The least time: the longer of both, which overlap at best."""
        return None if self.compute_s is None else max(self.compute_s, self.memory_s)

    @property
    def attainable_tflops(self) -> float | None:
        """The roof above this layer."""
        return None if self.peak_tflops is None else self.roof.attainable_tflops(self.intensity, self.unit)

    @property
    def bound(self) -> str | None:
        """What limits the layer: bandwidth or compute."""
        return None if self.peak_tflops is None else self.roof.bound(self.intensity, self.unit)


def roofline(
    *,
    machine: str,
    fmt: str,
    layer: str,
    size: int,
    rows: int,
    live: timing.Roofline | None = None,
    measured: Mapping[str, tuple[float, float]] | None = None,
    runs: Sequence[recorded.Run] = (),
) -> Point:
    """Place `layer` of `rows` and `size` under the roof of `machine`, a row of `gpus` or "this machine".

    `live` is this machine's roofline, as from `timing.roofline`; `measured` maps names of layers to (FLOP/byte,
    TFLOP/s) measured here in float32, which are drawn beside fp32 alone; `runs` are recorded ones. Raises ValueError or
    TypeError that names a wrong argument.
    """
    if live is not None and not isinstance(live, timing.Roofline):
        raise TypeError(f"live is {live!r}, it must be None or what timing.roofline() returns")
    for name, given, known in (("fmt", fmt, BYTES), ("layer", layer, LAYERS)):
        if given not in tuple(known):
            raise ValueError(f"{name} is {given!r}, it may be one of: {', '.join(known)}")
    arguments.whole("size", size), arguments.whole("rows", rows)
    if machine == _HERE and live is None:
        raise ValueError(f"machine is {machine!r}, but live is None: there is no roofline of it")
    roof = live if machine == _HERE else _predicted(machine)
    shown = [live] if live is not None else []
    shown += [timing.predicted(name) for name in _BESIDE]
    others = tuple(other for other in shown if other.device != roof.device and fmt in other.rates_tflops)
    return Point(roof, fmt, layer, size, rows, others, _curves(runs, fmt), _points(measured, fmt))


def _predicted(machine: str) -> timing.Roofline:
    try:
        return timing.predicted(machine)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("gpu is", "machine is", 1)) from None


def _points(measured: Mapping[str, tuple[float, float]] | None, fmt: str) -> tuple[tuple[str, float, float], ...]:
    found = []
    for name, pair in arguments.mapping("measured", measured, "pairs of FLOP/byte and TFLOP/s").items():
        numbers = arguments.numbers(f"measured[{name!r}]", pair)
        if len(numbers) != 2:
            raise ValueError(f"measured[{name!r}] is {pair!r}, it must be a pair of FLOP/byte and TFLOP/s")
        found.append((str(name), *(arguments.positive(f"measured[{name!r}]", number) for number in numbers)))
    return tuple(found) if fmt == "fp32" else ()


def _curves(runs: Sequence[recorded.Run], fmt: str) -> tuple:
    """Return the recorded rooflines of this format as (label, intensities, TFLOP/s)."""
    if not isinstance(runs, Sequence) or not all(isinstance(run, recorded.Run) for run in runs):
        raise TypeError(f"runs is {runs!r}, it must be a list of runs as recorded.load() gives")
    entries = [(run.label, run.entries[KEY]) for run in runs if KEY in run.entries]
    return tuple(
        (f"{fmt}, {label}", tuple(entry["x"]), tuple(entry["curves"][fmt]))
        for label, entry in entries
        if fmt in entry.get("curves", {})
    )


def describe(p: Point) -> str:
    """Return the result in words."""
    head = f"{p.layer.capitalize()} in {p.fmt}, {p.rows:,} rows, size {p.size:,} ({LAYERS[p.layer].what})"
    head += f": {plots.count_text(p.flops)} operations for {plots.bytes_text(p.nbytes)}, {p.intensity:.3g} FLOP/byte."
    if p.time_s is None:
        return f"{head} The {p.roof.device} has no stated rate for {p.unit}. Predicted from data sheets."
    ridge = f"ridge at {p.roof.ridge(p.unit):.3g}"
    time, rate = plots.seconds_text(p.time_s), f"{p.attainable_tflops:.3g} of {p.peak_tflops:.3g} TFLOP/s"
    return (
        f"{head} On {_name(p.roof)} ({ridge}) {p.bound} limits it: at least {time}, at most {rate}. "
        f"Predicted from {_source(p.roof)}; caches and launches are left out."
    )


def _name(roof: timing.Roofline) -> str:
    return f"the {roof.device}" if roof.label == "predicted" else f"{_HERE} ({roof.device})"


def _source(roof: timing.Roofline) -> str:
    return {"live": "the roof measured live", "simulated": "the simulated GPU's roof"}.get(roof.label, "the data sheet")


def draw(p: Point) -> Any:
    """Return the picture: roofs of several machines with this layer and the others under them, and the two times."""
    titles = ("What memory and arithmetic allow", "Least time")
    figure, (left, right) = plots.new(
        titles, "FLOP/byte", "TFLOP/s", log="xy", columns=2, widths=(5, 2), height_in=4.6 + 0.2 * len(p.recorded)
    )
    _draw_roofs(left, p)
    _draw_layers(left, p)
    _draw_times(right, p)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, fontsize=8)
    return figure


def _draw_roofs(axes: Any, p: Point) -> None:
    """Draw the chosen machine's roof for the arithmetic of this layer, those of others for its format, and recorded."""
    colours = iter((plots.GREEN, plots.PLUM, plots.OCHRE, plots.SKY))
    low, high = 0.02, max(1e4, 4 * p.intensity)
    spans = [low * (high / low) ** (step / 120) for step in range(121)]
    for roof in p.others:
        name, look = (_HERE if roof.label != "predicted" else roof.device), {"linewidth": 1.2, "color": next(colours)}
        known = p.unit if p.unit in roof.rates_tflops else p.fmt
        plots.line(axes, spans, [roof.attainable_tflops(i, known) for i in spans], name, _STYLES[roof.label], **look)
    for label, intensities, rates in p.recorded:
        axes.plot(intensities, rates, linestyle=plots.RECORDED, color=plots.PLUM, linewidth=1.2, label=label)
    if p.peak_tflops is not None:
        name = f"{p.roof.device if p.roof.label == 'predicted' else _HERE} {p.unit}"
        rates = [p.roof.attainable_tflops(i, p.unit) for i in spans]
        plots.line(axes, spans, rates, name, _STYLES[p.roof.label], color=plots.BLUE, linewidth=2.4)
    axes.set_xlim(low, high)


def _draw_layers(axes: Any, p: Point) -> None:
    """Draw every kind of layer of these sizes at the roof that it meets, the chosen one filled, and measured ones."""
    for name, layer in LAYERS.items():
        point = Point(p.roof, p.fmt, name, p.size, p.rows)
        if point.attainable_tflops is None:
            continue
        look = {"color": plots.RED, "zorder": 6, "markersize": 10} if name == p.layer else {"color": plots.INK}
        fill = plots.RED if name == p.layer else "white"
        place = [point.intensity], [point.attainable_tflops]
        axes.plot(*place, layer.mark, **{"markersize": 6, "markerfacecolor": fill, "linestyle": "", **look}, label=name)
    for place, (name, intensity, rate) in enumerate(p.measured):
        known = "_" if place else "layers measured here, live"
        axes.plot([intensity], [rate], "*", color=plots.GREEN, markersize=9, zorder=5, label=known)
        axes.annotate(name, (intensity, rate), (4, -9), textcoords="offset points", fontsize=8, color=plots.GREEN)


def _draw_times(axes: Any, p: Point) -> None:
    """Draw the time of the memory traffic and of the arithmetic; the longer is filled and is the least time."""
    axes.set(xscale="linear", yscale="linear", xlabel="predicted", ylabel="", yticks=[])
    axes.grid(False)
    bars = [("memory", p.memory_s, "bandwidth", plots.OCHRE), ("arithmetic", p.compute_s, "compute", plots.BLUE)]
    for name, seconds, bound, colour in bars:
        fill = colour if p.bound == bound else "white"
        axes.bar([name], [seconds or 0.0], width=0.6, color=fill, edgecolor=colour, linewidth=1.5)
        text = f"no {p.unit} rate" if seconds is None else plots.seconds_text(seconds)
        axes.annotate(text, (name, seconds or 0.0), (0, 4), textcoords="offset points", ha="center")
    axes.set_ylim(0, max(seconds for _, seconds, _, _ in bars if seconds) * 1.15)


_MACHINES = tuple(gpu.name for gpu in gpus.ALL if any(fmt in gpu.peak_tflops for fmt in BYTES))
_SIZES = tuple(2**n for n in range(6, 14))
_ROWS = tuple(2**n for n in range(15))


def explore(
    live: timing.Roofline | None = None,
    measured: Mapping[str, tuple[float, float]] | None = None,
    machine: str | None = None,
) -> Explorer:
    """Return the explorer of lesson 03; `live` and `measured` as in `roofline`, `machine` is the first to be shown.

    Default for `machine`: this machine where `live` is given, else the T4. Raises ValueError or TypeError that names a
    wrong argument.
    """
    machine = machine or (_HERE if live is not None else "T4")
    fixed = {"live": live, "measured": measured, "runs": recorded.load()}
    roofline(machine=machine, fmt="fp32", layer="linear", size=1024, rows=64, **fixed)
    machines = ((_HERE,) if live is not None else ()) + _MACHINES
    return Explorer(
        "which side of the ridge a layer is on",
        roofline,
        draw,
        describe,
        [
            Slider("rows", "Rows", _ROWS, 64, lambda n: f"{n:,}"),
            Slider("size", "Size", _SIZES, 1024, lambda n: f"{n:,}"),
            Choice("layer", "Layer", tuple(LAYERS), "linear"),
            Choice("fmt", "Number format", tuple(BYTES), "fp16"),
            Choice("machine", "Machine", machines, machine if machine == _HERE else gpus.get(machine).name),
        ],
        fixed,
    )
