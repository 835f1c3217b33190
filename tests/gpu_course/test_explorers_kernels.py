"""Do the explorers of lesson 08 hold over their whole grids, and do their pictures show their numbers?"""

import pytest

from course_utils import gpus
from gpu_course.lesson08.explorers import grid, tiles
from tests.gpu_course.explorer_settings import settings


def test_a_grid_touches_each_number_once_and_its_picture_has_a_cell_for_each_thread_and_element():
    for setting in settings(grid.explore()):
        g = grid.grid(**setting)
        found = sorted(i for row in g.threads for i in row if i is not None)
        assert found == list(range(min(g.n, g.block * g.blocks) if g.masked else g.block * g.blocks))
        assert g.outside == len([i for i in found if i >= g.n]) and g.missed == max(0, g.n - g.block * g.blocks)
    g = grid.grid(n=50, block=16, blocks=4, order=grid.ORDERS[0], masked=False)
    left, right = grid.draw(g).axes
    assert len(left.patches) == 64 and len(right.patches) == 64 and g.outside == 14


def test_tiles_divide_what_is_read_and_their_blocks_fit_on_a_multiprocessor():
    for setting in settings(tiles.explore()):
        t = tiles.tiles(**setting)
        assert t.read_bytes * t.tile == t.untiled_bytes and t.memory_s > 0 and t.compute_s > 0
        blocks, shared = min(t.limits.values()), t.sm.shared_kib * 1024
        assert 0 <= t.occupancy <= 1 and (t.refused or blocks * t.shared_bytes <= shared)
        assert bool(t.refused) == (t.threads > 1024 or t.shared_bytes + t.sm.reserved_bytes > shared)


@pytest.mark.parametrize(("tile", "each", "occupancy"), [(16, 1, 1.0), (64, 16, 0.5), (8, 16, 0.5), (64, 1, 0.0)])
def test_the_occupancy_is_that_of_the_tightest_limit(tile, each, occupancy):
    # of a T4: 32 warps, 16 blocks, 64 KiB: four blocks of 8 warps; two of 32 KiB; sixteen of 1; 4,096 threads are none
    assert tiles.tiles(n=1024, tile=tile, each=each, fmt="fp32", gpu="T4").occupancy == occupancy


def test_every_gpu_has_its_row_and_the_picture_the_numbers():
    assert {"T4", "A100 80GB", "L4", "H100 SXM", "B200"} <= set(tiles.GPUS) <= {row.name for row in gpus.ALL}
    t = tiles.tiles(n=4096, tile=16, each=1, fmt="fp32", gpu="T4")
    times, bars = tiles.draw(t).axes
    assert times.lines[-1].get_ydata()[0] == pytest.approx(t.memory_s * 1e3)
    assert [bar.get_width() for bar in bars.patches] == list(t.limits.values())
