"""Pictures of the elements that each thread, or each Triton program, touched."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from course_utils.plots import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kernelcheck import Report, TritonReport

BLOCKS = (look.BLUE, look.GREEN, look.SKY, look.PLUM)  # a colour for each block, none like red: out of bounds
_LARGEST = 4096  # in a larger array elements that nobody touched are not marked


class _Touches(NamedTuple):
    """What one block, or program, touched in one way: elements, the row of each in the picture, and the mark."""

    elements: np.ndarray
    rows: np.ndarray
    block: int
    mark: str


def touched(report: Report | TritonReport, array: str) -> Figure:
    """Return the picture of which elements of `array` a kernel touched, each block in its colour, out of bounds in red.

    Of a CUDA kernel a row is a thread, crosses are reads, dots are writes, and what no thread touched is grey. Of a
    Triton kernel a row is a program. Raises ValueError where the report has no accesses to `array`, as reports of very
    large launches have none.
    """
    from kernelcheck import TritonReport

    if array not in report.touched:
        raise ValueError(f"the report has no accesses to {array!r}; it has {', '.join(report.touched) or 'none'}")
    size = report.sizes[array]
    if isinstance(report, TritonReport):
        touches, ylabel = _by_programs(report, array)
        title, untouched = f"{array} has {size:,} elements", set()
    else:
        touches, ylabel = _by_threads(report, array)
        wrong = sum(int(_outside(one, size).sum()) for one in touches)
        title = f"{report.kernel}: {wrong:,} access{'es' * (wrong > 1)} out of bounds" if wrong else report.kernel
        untouched = set(range(min(size, _LARGEST))).difference(*(one.elements.tolist() for one in touches))
    figure, axes = look.new(title, f"element of {array}", ylabel, height_in=3.0)
    axes.grid(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    for element in untouched:
        axes.axvspan(element - 0.5, element + 0.5, color=look.GRID, zorder=0)
    for touch in touches:
        wrong = _outside(touch, size)
        for which, colour in ((~wrong, BLOCKS[touch.block % len(BLOCKS)]), (wrong, look.RED)):
            axes.scatter(touch.elements[which], touch.rows[which], 12, colour, marker=touch.mark, zorder=2)
    for edge in (-0.5, size - 0.5):
        axes.axvline(edge, color=look.INK, linewidth=1)
    return figure


def _outside(touch: _Touches, size: int) -> np.ndarray:
    return (touch.elements < 0) | (touch.elements >= size)


def _by_threads(report: Report, array: str) -> tuple[list[_Touches], str]:
    """Return what each block of a CUDA kernel touched, a row for each thread of all blocks, and what the rows are."""
    per_block = math.prod(report.block)
    groups: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for element, block, thread, kind in report.touched[array]:
        groups.setdefault((block, "x" if kind == "read" else "o"), []).append((element, block * per_block + thread))
    columns = {key: np.array(pairs).T for key, pairs in groups.items()}
    touches = [_Touches(elements, rows, *key) for key, (elements, rows) in columns.items()]
    return touches, f"thread, {per_block} a block"


def _by_programs(report: TritonReport, array: str) -> tuple[list[_Touches], str]:
    """Return what each program of a Triton kernel touched, a row for each, and what the rows are."""
    programs, touches = sorted(report.touched[array].items()), []
    one_axis = all(program[1:] == (0, 0) for program, _ in programs)
    for index, (program, elements) in enumerate(programs):
        row = program[0] if one_axis else index
        touches.append(_Touches(elements, np.full(elements.size, row), row, "|"))
    return touches, "program" if one_axis else "programs, one after the other"
