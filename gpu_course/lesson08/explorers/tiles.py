"""What does the size of a tile do to a product of matrices: bytes read, shared memory, threads at work?"""

from dataclasses import dataclass
from typing import Any

from course_utils import gpus, plots
from gpu_course.explorers import Choice, Explorer, Slider

__all__ = ["GPUS", "Tiles", "explore", "tiles"]

MAX_THREADS = 1024  # a block: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-hierarchy
STATIC_BYTES = 48 * 1024  # of shared memory a block without opting in for more:
# https://docs.nvidia.com/cuda/turing-tuning-guide/index.html, and those of later generations
_ITEM = {"fp32": 4, "fp16": 2}


def _known(gpu: gpus.GPU) -> bool:
    """Return whether all is stated of a GPU that a picture of tiles shows."""
    holds = gpu.generation
    limits = holds.blocks, holds.threads, holds.shared_kib, holds.reserved_bytes
    return None not in limits and set(_ITEM) <= set(gpu.peak_tflops)


GPUS = tuple(gpu.name for gpu in gpus.ALL if _known(gpu))


@dataclass(frozen=True)
class Tiles:
    """A product of n x n matrices in tiles of `tile` x `tile`, each thread computing `each` of the results."""

    n: int
    tile: int
    each: int
    fmt: str
    gpu: str

    sm = property(lambda self: gpus.get(self.gpu).generation, doc="What a multiprocessor holds at most.")
    threads = property(lambda self: self.tile**2 // self.each, doc="Threads of a block.")
    most_warps = property(lambda self: self.sm.threads // 32, doc="That a multiprocessor holds.")
    warps = property(lambda self: -(-self.threads // 32), doc="Warps of a block, 32 threads each.")
    shared_bytes = property(lambda self: 2 * self.tile**2 * _ITEM[self.fmt], doc="Of a block: a tile of each matrix.")
    read_bytes = property(lambda self: 2 * self.n**3 // self.tile * _ITEM[self.fmt], doc="Bytes that all blocks load.")
    untiled_bytes = property(lambda self: 2 * self.n**3 * _ITEM[self.fmt], doc="The same without tiles.")
    flops = property(lambda self: 2 * self.n**3, doc="Multiplications and additions.")
    memory_s = property(lambda t: t.read_bytes / (gpus.get(t.gpu).bandwidth_gbps * 1e9), doc="At the full bandwidth.")
    compute_s = property(lambda t: t.flops / (gpus.get(t.gpu).peak_tflops[t.fmt] * 1e12), doc="At the peak.")

    @property
    def limits(self) -> dict[str, int]:
        """How many blocks fit on a multiprocessor at once by each limit; registers are left out."""
        shared = self.sm.shared_kib * 1024 // (self.shared_bytes + self.sm.reserved_bytes)
        return {"blocks": self.sm.blocks, "warps": self.most_warps // self.warps, "shared memory": shared}

    @property
    def refused(self) -> str:
        """Why such a block cannot start at all, or nothing."""
        if self.threads > MAX_THREADS:
            return f"{self.threads:,} threads, and a block has at most {MAX_THREADS:,}"
        return "" if self.limits["shared memory"] else f"{plots.bytes_text(self.shared_bytes)} of shared memory"

    @property
    def occupancy(self) -> float:
        """Warps at once on a multiprocessor, as a share of the most that it can hold; 0 where no block starts."""
        return 0.0 if self.refused else min(self.limits.values()) * self.warps / self.most_warps


def tiles(*, n: int, tile: int, each: int, fmt: str, gpu: str) -> Tiles:
    """Return what tiles of this size mean for `gpu`: reads 2 n^3 / tile elements, shared memory 2 tile^2."""
    return Tiles(n, tile, each, fmt, gpu)


def describe(t: Tiles) -> str:
    """Return the result in words."""
    limit = min(t.limits, key=t.limits.get)
    starts = f"{t.limits[limit]} blocks at once on a multiprocessor (limit: {limit}): occupancy {t.occupancy:.0%}"
    starts = f"does not start: {t.refused}" if t.refused else starts
    more = "" if t.shared_bytes <= STATIC_BYTES else ", more than the 48 KiB that need no opting in"
    bound = "reading" if t.memory_s > t.compute_s else "arithmetic"
    size, read, untiled = (plots.bytes_text(n) for n in (t.shared_bytes, t.read_bytes, t.untiled_bytes))
    return (
        f"Tiles of {t.tile} x {t.tile} in {t.fmt}, {t.threads:,} threads a block: {read} read instead of {untiled}. "
        f"{t.gpu}: {plots.seconds_text(t.memory_s)} reading, {plots.seconds_text(t.compute_s)} arithmetic, so {bound} "
        f"limits it. {size} of shared memory a block{more}; {starts}. Predicted from data sheets, without caches and "
        f"registers."
    )


def draw(t: Tiles) -> Any:
    """Return the picture: both times against the size of a tile, and how many blocks each limit lets in."""
    titles = (f"n = {t.n:,} on a {t.gpu}", "Blocks at once, by limit")
    figure, (left, right) = plots.new(titles, columns=2, widths=(6, 4), height_in=3.4)
    sizes = _TILES
    times = [tiles(n=t.n, tile=size, each=t.each, fmt=t.fmt, gpu=t.gpu) for size in sizes]
    plots.line(left, sizes, [time.memory_s * 1e3 for time in times], "reading", plots.PREDICTED, color=plots.BLUE)
    plots.line(left, sizes, [time.compute_s * 1e3 for time in times], "arithmetic", plots.PREDICTED, color=plots.GREEN)
    left.plot([t.tile], [t.memory_s * 1e3], "o", color=plots.RED, markersize=9, label="this tile")
    left.set(xscale="log", yscale="log", xlabel="tile", ylabel="ms")
    left.set_xticks(sizes, [str(size) for size in sizes])
    plots.legend(left, fontsize=8)
    least = min(t.limits.values())
    colours = [plots.RED if value == least else plots.SKY for value in t.limits.values()]
    look = {"color": colours, "hatch": plots.hatch(plots.PREDICTED), "edgecolor": "white"}
    right.barh(list(t.limits), list(t.limits.values()), **look)
    for height, value in enumerate(t.limits.values()):
        right.annotate(str(value), (value, height), (4, 0), textcoords="offset points", va="center")
    said = "does not start" if t.refused else f"occupancy {t.occupancy:.0%}"
    right.set(xlim=(0, max(t.limits.values()) * 1.25), xlabel=f"blocks ({said})")
    right.grid(False, axis="y")
    return figure


_TILES = (4, 8, 16, 32, 64, 128)


def explore(gpu: str = "T4") -> Explorer:
    """Return the explorer of lesson 08 for tiles, for `gpu` at first, one of GPUS."""
    controls = [
        Slider("tile", "Tile", _TILES, 16),
        Slider("each", "Results of a thread", (1, 4, 16), 1),
        Choice("fmt", "Format", tuple(_ITEM), "fp32"),
        Slider("n", "n", (1024, 2048, 4096, 8192), 4096),
        Choice("gpu", "GPU", GPUS, gpu),
    ]
    return Explorer("what the size of a tile does", tiles, draw, describe, controls)
