"""Error of lesson 10's formulas against published runs on 8 to 512 GPUs, and the cost of their choices.

    python -m benchmarks.splits          # half a minute
    python -m benchmarks.splits --fit    # also searches the numbers of `measured.NANOTRON` again: two minutes

1. The 1,739 runs of `gpu_course.lesson10.measured` that came to an end, by what was split: the formulas as the explorer
   has them (`plans.IDEAL`), and with the five numbers that were chosen on two of the four models.
2. For each model and number of GPUs: how much longer the formulas' first choice took than the fastest way that was
   measured. Chosen among the ways that came to an end: the formulas know no program's memory to the last gigabyte.
3. 209 runs of another program, MosaicML's llm-foundry, with FSDP on 8 to 512 A100 and H100 (`mosaic.csv`): nothing is
   fitted to them. Apache License 2.0; sizes by its `mpt-*.yaml`; its runs with float8 are left out.
   https://github.com/mosaicml/llm-foundry/blob/8c8dd48f72168c5d51e2f7b151595892a8fba43d/scripts/train/benchmarking/README.md
   Its A100 are joined by 1,600 Gb/s for a machine; of its H100 the page says nothing, 3,200 Gb/s are assumed.

An error is how far predicted seconds are from measured ones, as a factor: a median of 1.10 says that half of the runs
are within 10 %, above or below. Bias is the median of predicted through measured. With five numbers the formulas'
errors of 1.5 to 2.3 fall to 1.05 to 1.44; of runs with FSDP they are 1.2 to 1.58, and 1.04 to 1.36.

The first choice was within 1.25 of the fastest measured way in 15 of 26 cases, with either program (median 1.07, 1.12).
"""

import argparse
import collections
import csv
import math
import statistics
from dataclasses import replace
from pathlib import Path

import simgpu
from gpu_course.lesson10 import measured, plans

_CLUSTERS = {
    "a100_40gb": simgpu.Cluster("A100 40GB", 8, "NVLink", simgpu.Link("RoCE", 25.0)),
    "a100_80gb": simgpu.Cluster("A100 80GB", 8, "NVLink", simgpu.Link("RoCE", 25.0)),
    "h100_80gb": simgpu.Cluster("H100 SXM", 8, "NVLink", "InfiniBand"),
}
_MPT = {  # layers, width, heads
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
    "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
_GRID = {
    "share": (0.5, 0.55, 0.6, 0.65, 0.7, 0.75),
    "layer_s": (0.0, 0.5e-3, 1e-3, 1.5e-3, 2e-3, 3e-3),
    "split_layer_s": (0.0, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3),
    "send_s": (0.0, 1e-3, 2e-3, 3e-3, 5e-3, 8e-3),
    "hidden": (0.0, 0.2, 0.33, 0.5, 0.67),
}


def ratio(run: measured.Run, program: plans.ProgramCosts = measured.NANOTRON) -> float:
    """Return predicted through measured seconds."""
    return run.predicted_s(program) / run.step_s


def by_kind() -> dict[str, list[measured.Run]]:
    """Return the runs by what was split."""
    found = collections.defaultdict(list)
    for run in measured.ended():
        found[run.kind].append(run)
    return dict(sorted(found.items(), key=lambda item: (item[0] in measured.LEFT_OUT, item[0])))


def fit() -> plans.ProgramCosts:
    """Return the program whose five numbers have the least median error on the runs of `measured.FITTED`."""
    chosen = [run for run in measured.ended() if run.model in measured.FITTED and run.kind not in measured.LEFT_OUT]
    program, least = plans.ProgramCosts(rates=measured.NANOTRON.rates), math.inf
    while True:
        before = program
        for name, values in _GRID.items():
            tried = [replace(program, **{name: value}) for value in values]
            errors = [measured.error(ratio(run, one) for run in chosen) for one in tried]
            if min(errors) < least:
                least, program = min(errors), tried[errors.index(min(errors))]
        if program == before:
            return program


def mosaic(program: plans.ProgramCosts) -> dict[tuple[str, str], list[float]]:
    """Return predicted through measured seconds of MosaicML's runs, by GPU and by machines."""
    found = collections.defaultdict(list)
    with Path(__file__).with_name("mosaic.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            layers, width, heads = _MPT[row["model"]]
            gpus, sequence, each = int(row["gpus"]), int(row["sequence"]), int(row["each"])
            rank = plans.Rank(
                _CLUSTERS[row["gpu"]], gpus, 1, 1, int(row["stage"]), int(row["micro"]), row["recompute"] == "1",
                width, layers, heads, 50_368, sequence=sequence, each=each, program=program,
            )  # fmt: skip
            tokens = sequence * each * int(row["micro"])
            size = "1 machine" if gpus == 8 else "2 to 8 machines" if gpus <= 64 else "16 to 64 machines"
            found[row["gpu"], size].append(sum(rank.times().values()) / (tokens / float(row["tokens_per_s"])))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fit", action="store_true", help="search the five numbers again")
    print("error and bias of         runs   the explorer's formulas   with five numbers of the program")
    for name, found in by_kind().items():
        ideal, fitted = ([ratio(run, one) for run in found] for one in (plans.IDEAL, measured.NANOTRON))
        said = "  ".join(f"{measured.error(one):10.2f} x {statistics.median(one):8.2f}" for one in (ideal, fitted))
        print(f"{name:34}{len(found):5}  {said}")
    tried = [run for run in measured.ended() if run.model not in measured.FITTED and run.kind not in measured.LEFT_OUT]
    print(f"3B and 80B, to which nothing was fitted, {len(tried)} runs: {measured.error(map(ratio, tried)):.2f}")
    for name, program in (("the explorer's formulas", plans.IDEAL), ("with five numbers", measured.NANOTRON)):
        found = measured.regrets(program).values()
        near = sum(one <= 1.25 for one in found)
        print(f"first choice, {name}: within 1.25 of best {near} of {len(found)}, median {measured.error(found):.2f}")
    print("MosaicML, FSDP:                      the explorer's formulas   with five numbers of nanotron")
    ideal, fitted = mosaic(plans.IDEAL), mosaic(measured.NANOTRON)
    for key, found in sorted(ideal.items()):
        said = "  ".join(f"{measured.error(one):10.2f} x {statistics.median(one):8.2f}" for one in (found, fitted[key]))
        print(f"{' '.join(key):34}{len(found):5}  {said}")
    if parser.parse_args().fit:
        print(fit())


if __name__ == "__main__":
    main()
