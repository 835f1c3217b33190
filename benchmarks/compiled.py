"""What does torch.compile bring? Networks that others timed with and without it, beside what the clock predicts.

    python -m benchmarks.compiled           # prints what is stored
    python -m benchmarks.compiled FOLDER    # draws the networks from timm's tables in FOLDER, and predicts them again

Stored are twenty networks, two drawn by chance and one of each of the quickest families: a small set of small networks.
The second command predicts another set, which takes hours, and needs `pip install --no-deps timm pillow`. FOLDER holds
the four files of `TABLES`, from timm's folder `results`. The rule was fixed before any of these networks was predicted:
those that both tables of the RTX 5090 have with the same size of image and the same batch, in the order of their names,
every sixteenth; on the RTX 4090 those of them whose tables agree so. What cannot be predicted is named, and left out.

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

EVERY = 16  # of the networks in the order of their names
TABLES = {  # by GPU: the table of what runs operator by operator, the compiled one
    name: tuple(f"benchmark-infer-amp-nchw-pt291-{cuda}-{short}{kind}.csv" for kind in ("", "-dynamo"))
    for name, cuda, short in (("RTX 5090", "cu130", "5090"), ("RTX 4090", "cu128", "4090"))
}
CLASSES = (1, 5, 20)  # bounds of the classes of size: billions of multiplications and additions for an image


def drawn(folder: Path) -> Iterator[tuple[str, list]]:
    """Yield (GPU, row) for each network that is compared, what is predicted left out."""
    chosen: list[str] = []
    for gpu, files in TABLES.items():
        plain, compiled = ({row["model"]: row for row in _read(folder / file)} for file in files)
        alike = sorted(name for name in plain if name in compiled and _setting(plain[name]) == _setting(compiled[name]))
        chosen = [name for name in alike if name in chosen] if chosen else alike[::EVERY]
        for name in chosen:
            measured, before = (float(one[name]["infer_step_time"]) for one in (compiled, plain))
            size, batch = _setting(plain[name])
            yield gpu, [name, size, batch, measured, None, "", 0, before, None, float(plain[name]["infer_gmacs"])]


def _read(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _setting(row: dict[str, str]) -> tuple[int, int]:
    return int(row["infer_img_size"]), int(row["infer_batch_size"])


def draw(folder: Path, stored: dict[str, Any]) -> None:
    """Predict the networks of the tables in `folder`, and put them into what is `stored`."""
    compared = {table["gpu"]: table for table in stored["tables"] if table.get("compiled")}
    rows: dict[tuple[str, int, int], list[tuple[str, list]]] = {}
    for gpu, row in drawn(folder):
        rows.setdefault(tuple(row[:3]), []).append((gpu, row))
    for table in compared.values():
        table["rows"] = []
    begin = time.perf_counter()
    for done, (network, both) in enumerate(rows.items(), 1):
        known: dict[str, Any] = {}
        for gpu, row in both:
            try:
                row[4:6] = published.predict(compared[gpu], row, known)
                row[8] = published.predict_eager(compared[gpu], row, known)
            except Exception as error:  # of timm, or of what a forecast refuses
                print(f"left out: {network[0]}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                break
            if row[5] != "compiled":
                print(f"left out: {network[0]}: its kernels are not known", flush=True)
                break
            compared[gpu]["rows"].append(row)
        if done % 10 == 0:
            print(f"{done} of {len(rows)} networks, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)


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
