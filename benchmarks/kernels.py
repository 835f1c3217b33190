"""How long does a CUDA kernel take from its text to its result on the CPU, and what does it move?

    python -m benchmarks.kernels

The six kernels of the tests, and products of 128 x 128 matrices. The median of three, in seconds; exit status 1 if one
takes more than 1.5 s from text to result.
"""

from __future__ import annotations

import statistics
import time

import torch

import kernelcheck
from course_utils import tables
from tests.kernelcheck.cuda_samples import BASES, RIGHT

LIMIT_S = 1.5


def timed(source: str, launch: dict) -> tuple[float, float, kernelcheck.Report]:
    """Return the seconds to compile, those to run, and the report."""
    compiled, ran = [], []
    for repeat in range(3):
        start = time.perf_counter()
        kernel = kernelcheck.compile_cuda(f"{source}\n// {time.time_ns()} {repeat}")  # a text that is in no cache
        compiled.append(time.perf_counter() - start)
        start = time.perf_counter()
        report = kernel(**launch)
        ran.append(time.perf_counter() - start)
    return statistics.median(compiled), statistics.median(ran), report


def main() -> bool:
    """Print a row for each kernel; return whether each kept the limit."""
    cases = {
        name: (one.source, {"grid": one.grid, "block": one.block, "args": one.made()}) for name, one in BASES.items()
    }
    square = {"grid": (8, 8), "block": (16, 16), "args": [*torch.rand(3, 128, 128), 128, 128, 128]}
    cases["product of 128, tiled"] = BASES["product"].source, square
    cases["product of 128, naive"] = next(source for name, source, _ in RIGHT if name == "product"), square
    rows, slowest = [], 0.0
    kernelcheck.compile_cuda(BASES["add"].source)  # builds the runtime, once a machine
    for name, (source, launch) in cases.items():
        compiled, ran, report = timed(source, launch)
        slowest = max(slowest, compiled + ran)
        moved = f"{report.loaded_bytes + report.stored_bytes:,}"
        rows.append([name, f"{compiled:.2f}", f"{ran:.2f}", moved, f"{report.sectors:,}", str(report.barriers)])
    print(f"{kernelcheck.compiler()}")
    print(tables.text(rows, ("kernel", "compile s", "run s", "bytes", "sectors", "barriers"), right=range(1, 6)))
    return slowest <= LIMIT_S


if __name__ == "__main__":
    raise SystemExit(not main())
