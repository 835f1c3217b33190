"""What becomes the next bottleneck when one is removed? A training step with four faults that can be repaired."""

from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Explorer, Slider, Switch

__all__ = ["REPAIRS", "WORKERS", "Step", "bottleneck", "explore"]

REPAIRS = ("workers", "smaller", "fused", "unread")
WORKERS, FEWER_BYTES, FEWER_LAUNCHES = 8, 8, 6  # uint8 is a quarter of float32, pinned twice the rate

_ORDER = "loading", "copying", "launching", "waiting", "computing"
_BESIDE = {"computing": "GPU", "copying": "bus", "loading": "workers"}


@dataclass(frozen=True)
class Step:
    """One of many equal steps, in ms: what each part takes, what the host does in turn, and who sets the pace."""

    load_ms: float
    copy_ms: float
    launch_ms: float
    compute_ms: float
    repaired: tuple[str, ...]
    in_turn: tuple[tuple[str, float], ...]  # what the host does itself in a step, one after the other
    beside: tuple[tuple[str, float], ...]  # what goes on beside the host: the slowest of all sets the pace
    wait_ms: float  # for the value that is read in each step

    host_ms = property(lambda s: sum(ms for _, ms in s.in_turn) + s.wait_ms, doc="Time of the host in a step.")
    step_ms = property(lambda s: max([s.host_ms, *(ms for _, ms in s.beside)]), doc="Time of a step.")

    @property
    def limit(self) -> str:
        """What sets the pace: a part, or where it is the host, the longest thing that it does."""
        name, ms = max(self.beside, key=lambda part: part[1])
        waits = (("waiting", self.wait_ms),) if self.wait_ms else ()
        return name if ms >= self.host_ms else max((*self.in_turn, *waits), key=lambda part: part[1])[0]


def bottleneck(
    *, load_ms: float, copy_ms: float, launch_ms: float, compute_ms: float, workers: bool, smaller: bool, fused: bool,
    unread: bool,
) -> Step:  # fmt: skip
    """Return a step in the long run.

    Without repairs the host loads a batch, waits for its copy from pageable memory, launches, and reads a value, for
    which it waits until the GPU is done. `workers`: `WORKERS` processes load. `smaller`: uint8 from pinned memory, a
    quarter of the bytes at twice the rate, and nobody waits. `fused`: a sixth of the launches; the GPU's time stays.
    `unread`: no read, so that the host runs ahead. Left out: the begin, and that repairs may disturb one another.
    """
    repaired = tuple(name for name, on in zip(REPAIRS, (workers, smaller, fused, unread), strict=True) if on)
    launch = launch_ms / FEWER_LAUNCHES if fused else launch_ms
    in_turn, beside = [("launching", launch)], [("computing", compute_ms)]
    (beside if smaller else in_turn).append(("copying", copy_ms / FEWER_BYTES if smaller else copy_ms))
    (beside if workers else in_turn).append(("loading", load_ms / WORKERS if workers else load_ms))
    wait = 0.0 if unread else max(compute_ms - launch, 0.1 * compute_ms)  # it computes while the host launches
    return Step(load_ms, copy_ms, launch_ms, compute_ms, repaired, tuple(in_turn), tuple(beside), wait)


def describe(s: Step) -> str:
    """Return the result in words."""
    before = s.load_ms + s.copy_ms + s.launch_ms + max(s.compute_ms - s.launch_ms, 0.1 * s.compute_ms)
    done = f"Repaired: {', '.join(s.repaired)}" if s.repaired else "Nothing repaired"
    return (
        f"{done}. A step takes {s.step_ms:.3g} ms, {before / s.step_ms:.2f} times as fast as unrepaired; the GPU "
        f"computes for {s.compute_ms / s.step_ms:.0%} of it. Now {s.limit} sets the pace. Predicted, in the long run."
    )


def draw(s: Step) -> Any:
    """Return the picture: a bar for the host, with what it does in turn, and for each part beside it."""
    figure, axes = plots.new("One step", height_in=2.6)
    colours = dict(zip(_ORDER, (plots.OCHRE, plots.RED, plots.SKY, plots.PALE, plots.GREEN), strict=True))
    own = [*s.in_turn, *([("waiting", s.wait_ms)] if s.wait_ms else [])]
    rows = [("host", sorted(own, key=lambda part: _ORDER.index(part[0])))]
    rows += [(_BESIDE[name], [(name, ms)]) for name, ms in s.beside]
    for height, (_, parts) in enumerate(rows):
        begin = 0.0
        for name, ms in parts:
            label = name if name not in axes.get_legend_handles_labels()[1] else None
            axes.barh(height, ms, left=begin, height=0.6, color=colours[name], ec="white", label=label)
            begin += ms
    axes.axvline(s.step_ms, color=plots.INK, linewidth=1)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.05 * s.step_ms), xlabel="ms, predicted; a step takes as long as the longest row")
    axes.grid(False, axis="y")
    figure.legend(loc="outside upper right", ncols=5, frameon=False, fontsize=9)
    return figure


def explore() -> Explorer:
    """Return the explorer of lesson 06."""
    ms = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
    controls = [
        Switch("workers", "Load in workers"),
        Switch("smaller", "Copy uint8, pinned"),
        Switch("fused", "Fewer launches"),
        Switch("unread", "Read nothing"),
        Slider("load_ms", "Load, ms", ms, 10.0),
        Slider("copy_ms", "Copy, ms", ms, 2.0),
        Slider("launch_ms", "Launch, ms", ms, 5.0),
        Slider("compute_ms", "Compute, ms", ms, 2.0),
    ]
    return Explorer("the next bottleneck", bottleneck, draw, describe, controls)
