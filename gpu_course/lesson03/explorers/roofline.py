"""Which side of the ridge is a layer on, and how long does it take at least?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_utils import gpus, plots, recorded, timing
from gpu_course.explorers import Choice, Explorer, Slider

__all__ = ["BYTES", "LAYERS", "Layer", "Point", "explore", "roofline"]

BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
KEY = "03.roofline"  # under which lesson 03 records curves over the intensity, one a format
_HERE = "this machine"
_BESIDE = ("T4", "A100 80GB", "H200")  # whose roofs are drawn beside the chosen one
_STYLES = {"live": plots.LIVE, "simulated": plots.SIMULATED, "predicted": plots.PREDICTED}


IMAGE, KERNEL, HEAD = 56, 3, 64  # of the convolution: rows of an image and of a kernel; of attention: width of a head


@dataclass(frozen=True)
class Layer:
    """One kind of layer: its operations and how often it reads or writes an element of memory, if each only once.

    `flops` and `elements` take (rows, size). Where `matrix` holds, matrix units do the arithmetic at the rate of the
    format; else plain float32 units do. In a layer with products only these are counted, as FlopCounterMode does.
    """

    what: str
    flops: Callable[[int, int], int]
    elements: Callable[[int, int], int]
    matrix: bool = True
    mark: str = "o"


LAYERS = {
    "linear": Layer("rows x size times size x size, and a bias", lambda m, n: 2 * m * n * n,
                    lambda m, n: 2 * m * n + n * n + n, mark="s"),
    "matrix products": Layer("as many products of square matrices as rows", lambda m, n: 2 * m * n**3,
                             lambda m, n: 3 * m * n * n, mark="D"),
    "convolution": Layer(f"{KERNEL} x {KERNEL}, size channels to as many, a row is an image of {IMAGE} x {IMAGE}",
                         lambda m, n: 2 * m * IMAGE**2 * n * n * KERNEL**2,
                         lambda m, n: 2 * m * IMAGE**2 * n + n * n * KERNEL**2 + n, mark="^"),
    "attention, fused": Layer(f"a row is a head of width {HEAD}, size is the length, scores stay on the chip",
                              lambda m, n: 4 * m * n * n * HEAD, lambda m, n: 4 * m * n * HEAD, mark="P"),
    "attention, scores in memory": Layer(
        f"a row is a head of width {HEAD}, size is the length; product, softmax and product each pass over all scores",
        lambda m, n: 4 * m * n * n * HEAD, lambda m, n: 4 * m * n * HEAD + 4 * m * n * n, mark="X"),
    "element-wise sum": Layer("x + y", lambda m, n: m * n, lambda m, n: 3 * m * n, matrix=False, mark="v"),
    "softmax": Layer("over size: maximum, difference, exponential, sum, quotient", lambda m, n: 5 * m * n,
                     lambda m, n: 2 * m * n, matrix=False, mark="<"),
    "layer norm": Layer("over size: two sums, difference, square, scale, weight, bias", lambda m, n: 7 * m * n,
                        lambda m, n: 2 * m * n + 2 * n, matrix=False, mark=">"),
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One layer on one machine: where it lies under the roof, and the least time that this allows."""

    roof: timing.Roofline
    fmt: str
    layer: str
    size: int
    rows: int
    others: tuple[timing.Roofline, ...] = ()
    recorded: tuple[plots.Curve, ...] = ()  # TFLOP/s over FLOP/byte
    measured: tuple[tuple[str, float, float], ...] = ()  # (name, FLOP/byte, TFLOP/s) of layers on this machine

    flops = property(lambda self: LAYERS[self.layer].flops(self.rows, self.size), doc="Operations of the layer.")

    @property
    def nbytes(self) -> int:
        """Bytes that the layer reads and writes if it touches each element of its arrays once."""
        return LAYERS[self.layer].elements(self.rows, self.size) * BYTES[self.fmt]

    intensity = property(lambda self: self.flops / self.nbytes, doc="Operations a byte.")

    @property
    def unit(self) -> str:
        """The format whose rate bounds the arithmetic: float32 for what is no product."""
        return self.fmt if LAYERS[self.layer].matrix else "fp32"

    @property
    def peak_tflops(self) -> float | None:
        """The rate of the arithmetic; None, as all that follows from it, where the machine has none for the format."""
        return self.roof.rates_tflops.get(self.unit)

    memory_s = property(lambda p: p.nbytes / (p.roof.bandwidth_gbps * 1e9), doc="Seconds of the memory traffic alone.")
    compute_s = property(lambda p: p.peak_tflops and p.flops / (p.peak_tflops * 1e12), doc="Seconds of arithmetic.")
    time_s = property(lambda p: p.compute_s and max(p.compute_s, p.memory_s), doc="Least time: both overlap at best.")
    bound = property(lambda p: p.peak_tflops and p.roof.bound(p.intensity, p.unit), doc='"bandwidth" or "compute".')

    @property
    def attainable_tflops(self) -> float | None:
        """The roof above this layer."""
        return self.peak_tflops and self.roof.attainable_tflops(self.intensity, self.unit)


def roofline(
    *, machine: str, fmt: str, layer: str, size: int, rows: int, live: timing.Roofline | None = None,
    measured: Mapping[str, tuple[float, float]] | None = None, runs: Sequence[recorded.Run] = (),
) -> Point:  # fmt: skip
    """Place `layer` of `rows` and `size` under the roof of `machine`, a row of `gpus` or "this machine".

    `live` is this machine's roofline, as from `timing.roofline`; `measured` maps names of layers to (FLOP/byte,
    TFLOP/s) measured here in float32, which are drawn beside fp32 alone; `runs` are recorded ones.
    """
    roof = live if machine == _HERE else timing.predicted(machine)
    shown = [live] if live is not None else []
    shown += [timing.predicted(name) for name in _BESIDE]
    others = tuple(other for other in shown if other.device != roof.device and fmt in other.rates_tflops)
    known = tuple(curve for curve in recorded.curves(runs, KEY) if curve.name == fmt)
    points = tuple((name, *pair) for name, pair in (measured or {}).items()) if fmt == "fp32" else ()
    return Point(roof, fmt, layer, size, rows, others, known, points)


def describe(p: Point) -> str:
    """Return the result in words."""
    head = f"{p.layer.capitalize()} in {p.fmt}, {p.rows:,} rows, size {p.size:,} ({LAYERS[p.layer].what})"
    head += f": {plots.count_text(p.flops)} operations for {plots.bytes_text(p.nbytes)}, {p.intensity:.3g} FLOP/byte."
    if p.time_s is None:
        return f"{head} The {p.roof.device} has no stated rate for {p.unit}. Predicted from data sheets."
    name = f"the {p.roof.device}" if p.roof.label == "predicted" else f"{_HERE} ({p.roof.device})"
    source = {"live": "the roof measured live", "simulated": "the simulated GPU's roof"}
    time, rate = plots.seconds_text(p.time_s), f"{p.attainable_tflops:.3g} of {p.peak_tflops:.3g} TFLOP/s in {p.unit}"
    return (
        f"{head} On {name} (ridge at {p.roof.ridge(p.unit):.3g}) {p.bound} limits it: at least {time}, at most {rate}. "
        f"Predicted from {source.get(p.roof.label, 'the data sheet')}; caches and launches are left out."
    )


def draw(p: Point) -> Any:
    """Return the picture: roofs of several machines with this layer and the others under them, and the two times."""
    look = {"log": "xy", "columns": 2, "widths": (5, 2), "height_in": 4.6 + 0.2 * len(p.recorded)}
    titles = ("What memory and arithmetic allow", "Least time")
    figure, (left, right) = plots.new(titles, "FLOP/byte", "TFLOP/s", **look)
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
    for curve in p.recorded:
        plots.add_curve(axes, curve, color=plots.PLUM, linewidth=1.2)
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
        position = [point.intensity], [point.attainable_tflops]
        axes.plot(
            *position, layer.mark, **{"markersize": 6, "markerfacecolor": fill, "linestyle": "", **look}, label=name
        )
    for index, (name, intensity, rate) in enumerate(p.measured):
        known = "_" if index else "layers measured here, live"
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


def explore(
    live: timing.Roofline | None = None, measured: Mapping[str, tuple[float, float]] | None = None,
    machine: str | None = None,
) -> Explorer:  # fmt: skip
    """Return the explorer of lesson 03; `live` and `measured` as in `roofline`, `machine` is the first to be shown.

    Default for `machine`: this machine where `live` is given, else the T4. Raises ValueError or TypeError where
    `machine` is none with a rate.
    """
    machines = [gpu.name for gpu in gpus.ALL if gpu.peak_tflops.keys() & BYTES.keys()]
    machines = [_HERE, *machines] if live is not None else machines
    first = machine or (_HERE if live is not None else "T4")
    controls = [
        Slider("rows", "Rows", tuple(2**n for n in range(15)), 64),
        Slider("size", "Size", tuple(2**n for n in range(6, 14)), 1024),
        Choice("layer", "Layer", tuple(LAYERS), "linear"),
        Choice("fmt", "Number format", tuple(BYTES), "fp16"),
        Choice("machine", "Machine", machines, first if first == _HERE else gpus.get(first, "machine").name),
    ]
    fixed = {"live": live, "measured": measured, "runs": recorded.load()}
    return Explorer("which side of the ridge a layer is on", roofline, draw, describe, controls, fixed)
