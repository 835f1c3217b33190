"""What does a cuTile kernel compute? The IR of NVIDIA's own front end runs here on NumPy, without a GPU.

import cuda.tile as ct
from kernelcheck import tile

@ct.kernel
def double(x, out, TILE: ct.Constant[int]):
    block = ct.bid(0)
    ct.store(out, index=(block,), tile=2 * ct.load(x, index=(block,), shape=(TILE,)))

report = tile.checked(double, (4,), x, out, 16)
tile.launch(double, (4,), x, out, 16)

It needs the package cuda-tile, which is there for Linux and Windows: pip install "kernelcheck[tile]". `why_not()` says
what is missing.
"""

from kernelcheck.tile.front_end import VERSION, why_not
from kernelcheck.tile.language import checked, launch

__all__ = ["VERSION", "checked", "launch", "why_not"]
