"""Which thread of which block touches which element, which touches none, and which one beyond the end?"""

from dataclasses import dataclass
from typing import Any

from course_utils import plots
from gpu_course.explorers import Choice, Explorer, Slider, Switch

__all__ = ["ORDERS", "Grid", "explore", "grid"]

ORDERS = ("block * BLOCK + thread", "thread * BLOCKS + block")
_SECTOR = 8  # float32 numbers in 32 bytes
_OFF, _OUTSIDE = plots.GRID, plots.RED


@dataclass(frozen=True)
class Grid:
    """A launch over an array of `n` float32 numbers: `threads[block][thread]` is its element, None where masked off."""

    n: int
    block: int
    blocks: int
    masked: bool
    threads: tuple[tuple[int | None, ...], ...]

    touched = property(lambda g: {i for row in g.threads for i in row if i is not None}, doc="The elements touched.")
    outside = property(lambda self: len([i for i in self.touched if i >= self.n]), doc="How many lie beyond the end.")
    missed = property(lambda self: self.n - len([i for i in self.touched if i < self.n]), doc="Elements left out.")
    idle = property(lambda self: sum(row.count(None) for row in self.threads), doc="Threads whose mask is off.")

    @property
    def sectors(self) -> int:
        """Pieces of 32 bytes that the blocks ask for, each of at most 32 threads, which ask together."""
        return sum(len({i // _SECTOR for i in row if i is not None}) for row in self.threads)


def grid(*, n: int, block: int, blocks: int, order: str, masked: bool) -> Grid:
    """Return which element each of `block` threads of `blocks` blocks touches by the formula `order`, one of ORDERS."""
    numbers = [[b * block + t if order == ORDERS[0] else t * blocks + b for t in range(block)] for b in range(blocks)]
    accessed = tuple(tuple(i if i < n or not masked else None for i in row) for row in numbers)
    return Grid(n, block, blocks, masked, accessed)


def describe(g: Grid) -> str:
    """Return the result in words."""
    threads = f"{g.blocks} block{'s' if g.blocks > 1 else ''} of {g.block} threads over {g.n} elements"
    outside = f"{g.outside} threads go beyond the end: a fault on a GPU, or other data changed in silence"
    fault = "no thread goes beyond the end" if not g.outside else outside
    missed = "every element has its thread" if not g.missed else f"{g.missed} elements have no thread"
    return (
        f"{threads}: {missed}; {fault}; {g.idle} threads have their mask off. Each block asks for its 32-byte sectors "
        f"in one request: {g.sectors} in all, and the array has {-(-g.n // _SECTOR)}. Counted."
    )


def draw(g: Grid) -> Any:
    """Return the picture: the threads with their elements, and the elements in the colours of their blocks."""
    titles = ("Threads, and their elements", "The array: each row is a sector")
    figure, (left, right) = plots.new(titles, columns=2, widths=(6, 4), height_in=max(3.6, 0.24 * g.blocks + 0.9))
    colours = {}
    for b, row in enumerate(g.threads):
        for t, element in enumerate(row):
            colour = _OFF if element is None else _OUTSIDE if element >= g.n else plots.BLOCKS[b % len(plots.BLOCKS)]
            colours[element] = colour
            _cell(left, t, b, "" if element is None else str(element), colour)
    left.set(xlim=(-0.1, g.block), ylim=(g.blocks, -0.1), xlabel="thread", ylabel="block")
    shown = max(g.n, max(g.touched, default=0) + 1)
    for i in range(shown):
        _cell(right, i % _SECTOR, i // _SECTOR, str(i), colours.get(i, "white"))
    right.set(xlim=(-0.1, _SECTOR), ylim=(-(-shown // _SECTOR), -0.1), ylabel="sector")
    right.set_xlabel("a colour for each block; red: beyond the end", fontsize=8)
    for axes in (left, right):
        axes.grid(False)
        axes.spines[:].set_visible(False)
        axes.set(xticks=[], yticks=[])
    return figure


def _cell(axes: Any, x: float, y: float, text: str, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), 0.92, 0.88, facecolor=colour, edgecolor=plots.MUTED, linewidth=0.4))
    ink = plots.INK if colour in ("white", _OFF) else "white"
    axes.text(x + 0.46, y + 0.45, text, ha="center", va="center", fontsize=5, color=ink)


def explore() -> Explorer:
    """Return the explorer of lesson 08 for grids."""
    controls = [
        Slider("n", "Elements", (20, 32, 50, 64, 100, 128), 50),
        Slider("block", "Threads in a block", (4, 8, 16, 32), 16),
        Slider("blocks", "Blocks", (1, 2, 3, 4, 6, 8, 12, 16), 4),
        Choice("order", "Element of a thread", ORDERS, ORDERS[0]),
        Switch("masked", "Mask: element < n", True),
    ]
    return Explorer("which thread touches which element", grid, draw, describe, controls)
