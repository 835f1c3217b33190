"""Gains of torch.compile: published times of networks with and without it, beside the clock's predictions.

    python -m benchmarks.compiled
    python -m benchmarks.compiled small    # predicts small programs; a minute, needs timm (see published.py)

Stored are twenty networks, two drawn by chance and one of each of the quickest families, most of them small; and those
that a rule drew, which was fixed before any of them was predicted: of the networks that timm's tables of the RTX 5090
have with the same size of image and the same batch, plain and compiled, in the order of their names, every fourth,
which are 256; and of all others every twenty-eighth, from the third on. On the RTX 4090 those of them whose tables
agree so. What could not be predicted was named, and left out. `benchmarks.published` predicts them again. Stored are
predictions of an older clock: of 58 drawn again 46 are the same (median error 7.1 % instead of 6.7).

No constant of the clock was chosen by compiled runs, and none by any run on the RTX 5090.

`small_programs.csv` has programs of some lines, half of which lose by compiling. All were written down, with their
published times, before the clock was asked. An expression is a network, or a function that is called outside of any;
"waits": its author waited for the GPU after each call.
"""

import csv
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import simgpu
from benchmarks import programs
from course_utils import tables
from simgpu import evidence

SMALL = Path(__file__).with_name("small_programs.csv")
NAMES = {"torch": torch, "nn": nn, "timm": programs.timm}


def show(bar: evidence.ErrorBar) -> None:
    """Print how far the clock is from these runs, by GPU and by size of the network."""
    pairs = itertools.pairwise((0.0, 1.0, 5.0, 20.0, float("inf")))  # billions of multiplications for an image
    classes = [("all", 0.0, float("inf")), *((f"{low:g} to {high:g}", low, high) for low, high in pairs)]
    found = []
    for gpu, (name, low, high) in itertools.product(("RTX 5090", "RTX 4090"), classes):
        here = bar.where(lambda run, gpu=gpu: run.gpu == gpu and run.eager is not None)
        part = here.where(lambda run, low=low, high=high: low <= run.eager.gmacs < high)
        if len(part.runs) > 1:
            gain = statistics.median(run.eager.measured_ms / run.measured_ms for run in part.runs)
            figures = f"{part.gains.median_error:.1%}", f"{part.gains.rank_correlation:.2f}"
            found.append([gpu, name, f"{len(part.runs):,}", f"{part.median_error:.1%}", f"{gain:.2f}", *figures])
    head = ("GPU", "GMACs", "networks", "error of a step", "gain, measured", "error of the gain", "rank correlation")
    print(tables.text(found, head, right=range(2, 7)))
    print("Errors are medians of |predicted / measured - 1|; the correlation is Spearman's, of the gains.")


def predicted_us(row: dict[str, str]) -> list[float]:
    """Return what the clock predicts for a row of small programs, without and with compiling."""
    calls = 1 if row["waits"] else 20

    def make_model() -> nn.Module:
        made, model = eval(row["program"], NAMES), nn.Module()
        model.forward = made
        return made if isinstance(made, nn.Module) else model

    def make_batch() -> list[torch.Tensor]:
        inputs = (one.split(":") for one in row["inputs"].split())
        return [torch.empty(*map(int, shape.split("x")), dtype=getattr(torch, name)) for name, shape in inputs]

    def step(model: nn.Module, batch: Any, _: object) -> None:
        with torch.no_grad():
            for _ in range(calls):
                (model if list(model.parameters()) else model.forward)(*batch)

    ahead, card = simgpu.forecast(make_model, make_batch, step=step), evidence.card(row["gpu"])
    return [one.on(card).total_s / calls * 1e6 for one in (ahead, ahead.compiled(row["mode"] or None))]


def show_small() -> None:
    """Print published and predicted times and gains of small programs."""
    head = ("program", "GPU", "µs", "compiled", "predicted", "compiled, predicted", "gain", "predicted")
    found = []
    for row in csv.DictReader(SMALL.open(encoding="utf-8")):
        us = [float(row["eager_us"]), float(row["compiled_us"]), *predicted_us(row)]
        gains = f"{us[0] / us[1]:.2f}", f"{us[2] / us[3]:.2f}"
        found.append([row["program"][:50], row["gpu"], *(f"{one:,.0f}" for one in us), *gains])
    print(tables.text(found, head, right=range(2, 8)))


if __name__ == "__main__":
    show_small() if sys.argv[1:] == ["small"] else show(evidence.error_bar())
