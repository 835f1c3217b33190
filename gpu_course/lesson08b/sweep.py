"""How long did one kernel take under each of thousands of settings, on two GPUs? Published measurements.

The kernel is a convolution of 4,096 x 4,096 float32 numbers with a filter of 15 x 15. The numbers are those of the
Benchmark Hub for Auto-Tuning, files cachefiles/convolution_milo/A100.json.gz and A6000.json.gz at commit 8eeb99e
(https://github.com/AutoTuningAssociation/benchmark_hub, MIT licence, copyright (c) 2025 AutoTuningAssociation; kernel
and hardware: https://doi.org/10.5281/zenodo.11617999). Kept are the 3,886 settings that ran on both, times rounded to
microseconds.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Setting", "settings"]

_FILE = Path(__file__).with_name("convolution.csv")


@dataclass(frozen=True)
class Setting:
    """One way to run the kernel, and what it took.

    - `block_x`, `block_y`: threads of a block; `tile_x`, `tile_y`: results that each thread computes;
    - `read_only`, `padded`, `shared`: whether loads go through the read-only cache, whether rows in shared memory are
      padded against bank conflicts, and whether the input goes through shared memory at all;
    - `a100_us`, `a6000_us`: the mean time in microseconds on an A100 (PCIe, 40 GB) and on an RTX A6000.
    """

    block_x: int
    block_y: int
    tile_x: int
    tile_y: int
    read_only: bool
    padded: bool
    shared: bool
    a100_us: int
    a6000_us: int

    @property
    def warps(self) -> int:
        """Return the warps of a block, a part of one counted as one."""
        return -(-self.block_x * self.block_y // 32)

    @property
    def without_padding(self) -> tuple[int | bool, ...]:
        """Return the setting without `padded` and times: two that agree here differ in padding alone."""
        return self.block_x, self.block_y, self.tile_x, self.tile_y, self.read_only, self.shared


def settings() -> list[Setting]:
    """Return all settings."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    flags = {"0": False, "1": True}
    return [Setting(*map(int, row[:4]), *(flags[one] for one in row[4:7]), *map(int, row[7:])) for row in rows]
