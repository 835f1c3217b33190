"""Gains of torch.compile: published times of networks with and without it, beside the clock's predictions.

    python -m benchmarks.compiled           # prints what is stored
    python -m benchmarks.compiled FOLDER    # draws networks from timm's tables in FOLDER, and predicts those not stored

Stored are twenty networks, two drawn by chance and one of each of the quickest families, most of them small; and those
that the rules below give, in the order of `EVERY`. The second command predicts those that are not stored, which takes
hours, and needs `pip install --no-deps timm pillow`; stopped and started again, it goes on where it was. FOLDER
holds the four files of `TABLES`, from timm's folder `results`, whose licence is Apache 2.0.

The rule was fixed before any of these networks was predicted: those that both tables of the RTX 5090 have with the same
size of image and the same batch, in the order of their names, every fourth, which are 256; and of all others every
twenty-eighth, from the third on, a rule that was added and fixed before any of these was predicted. On the RTX 4090
those of them whose tables agree so. What cannot be predicted is named, and left out.

No constant of the clock was chosen by compiled runs, and none by any run on the RTX 5090.
"""

from __future__ import annotations

import csv
import itertools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import programs, published
from course_utils import tables
from simgpu import evidence

EVERY = (256, 128, 64, 32, 16, 8, 4)  # of the networks in the order of their names, so that a part is spread over all
LATER = slice(2, None, 28)  # those that the second rule adds: none is a fourth one
TABLES = {  # by GPU: the table of what runs operator by operator, the compiled one
    name: tuple(f"benchmark-infer-amp-nchw-pt291-{cuda}-{short}{kind}.csv" for kind in ("", "-dynamo"))
    for name, cuda, short in (("RTX 5090", "cu130", "5090"), ("RTX 4090", "cu128", "4090"))
}
CLASSES = (1, 5, 20)  # bounds of the classes of size: billions of multiplications and additions for an image


def drawn(folder: Path) -> list[list[tuple[str, list]]]:
    """Return for each network that is compared its (GPU, row)s, what is predicted left out."""
    known = {
        gpu: [{row["model"]: row for row in _read(folder / file)} for file in files] for gpu, files in TABLES.items()
    }
    alike = {gpu: [name for name in plain if _same(plain[name], compiled)] for gpu, (plain, compiled) in known.items()}
    names = sorted(alike["RTX 5090"])
    chosen = dict.fromkeys(name for every in EVERY for name in names[::every]) | dict.fromkeys(names[LATER])
    return [[(gpu, _row(name, *known[gpu])) for gpu in TABLES if name in alike[gpu]] for name in chosen]


def _row(name: str, plain: dict[str, dict[str, str]], compiled: dict[str, dict[str, str]]) -> list:
    before, after = (float(table[name]["infer_step_time"]) for table in (plain, compiled))
    return [name, *_setting(plain[name]), after, None, "", 0, before, None, float(plain[name]["infer_gmacs"])]


def _read(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _same(row: dict[str, str], compiled: dict[str, dict[str, str]]) -> bool:
    """Return whether both tables have the network, with the same size of image and the same batch."""
    return row["model"] in compiled and _setting(row) == _setting(compiled[row["model"]])


def _setting(row: dict[str, str]) -> tuple[int, int]:
    return int(row["infer_img_size"]), int(row["infer_batch_size"])


def draw(folder: Path, stored: dict[str, Any]) -> None:
    """Predict the networks of the tables in `folder`, and add each to `stored` unless it is there."""
    compared = {table["gpu"]: table for table in stored["tables"] if table.get("compiled")}
    networks = drawn(folder)
    there = {(gpu, row[0]) for gpu, table in compared.items() for row in table["rows"]}
    begin = time.perf_counter()
    for done, network in enumerate(networks, 1):
        if there.isdisjoint((gpu, row[0]) for gpu, row in network):
            _predict(network, compared)
            published.store(stored)
        if done % 10 == 0:
            print(f"{done} of {len(networks)}, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)


def _predict(network: list[tuple[str, list]], compared: dict[str, dict[str, Any]]) -> None:
    """Predict the rows of a network, and put them into the tables of their GPUs; say so where it cannot be done."""
    known: dict[str, Any] = {}
    for gpu, row in network:
        try:
            row[4:6] = published.predict(compared[gpu], row, known)
            row[8] = published.predict_eager(compared[gpu], row, known)
        except Exception as error:  # of timm, or of what a forecast refuses
            print(f"left out: {row[0]}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            return
        if row[5] != "compiled":
            print(f"left out: {row[0]}: its kernels are not known", flush=True)
            return
    for gpu, row in network:
        compared[gpu]["rows"].append(row)


def show(bar: evidence.ErrorBar) -> None:
    """Print how far the clock is from these runs, by GPU and by size of the network."""
    found = []
    for gpu in TABLES:
        runs = bar.where(lambda run, gpu=gpu: run.gpu == gpu and run.eager is not None)
        for name, low, high in _classes():
            part = runs.where(lambda run, low=low, high=high: low <= run.eager.gmacs < high)
            if len(part.runs) > 1:
                found.append([gpu, name, f"{len(part.runs):,}", *_cells(part)])
    head = ("GPU", "GMACs", "networks", "error of a step", "gain, measured", "error of the gain", "rank correlation")
    print(tables.text(found, head, right=range(2, 7)))
    print("Errors are medians of |predicted / measured - 1|; the correlation is Spearman's, of the gains.")


def _classes() -> list[tuple[str, float, float]]:
    bounds = [0.0, *map(float, CLASSES), float("inf")]
    parts = [(f"{low:g} to {high:g}", low, high) for low, high in itertools.pairwise(bounds)]
    return [("all", 0.0, float("inf")), *parts]


def _cells(bar: evidence.ErrorBar) -> list[str]:
    gain = statistics.median(run.eager.measured_ms / run.measured_ms for run in bar.runs)
    return [
        f"{bar.median_error:.1%}", f"{gain:.2f}", f"{bar.gains.median_error:.1%}", f"{bar.gains.rank_correlation:.2f}"
    ]  # fmt: skip


def main() -> None:
    stored = json.loads(evidence.FILE.read_text(encoding="utf-8"))
    if len(sys.argv) > 1:
        with warnings.catch_warnings(action="ignore"):
            programs.timm()
            draw(Path(sys.argv[1]), stored)
        published.store(stored)
    show(evidence.bar(stored))


if __name__ == "__main__":
    main()
