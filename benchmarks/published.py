"""Error of the simulated clock against published times.

    pip install --no-deps timm pillow
    python -m benchmarks.published         # predicts all again and stores it: an hour
    python -m benchmarks.published 20      # predicts so many rows again; ends with 1 if one is not what is stored
    python -m benchmarks.published 0       # only shows what is stored

Measured: images a second, times of a step or of an operator, bandwidths, each with its address in
engines/simgpu/simgpu/clock/published.json; there all are in ms. Predicted: the same programs (`benchmarks.programs`) on
tensors without memory, as a forecast prices them, on a host that takes 5 µs for a launch and no more: these rows
say how well GPUs are priced, and `benchmarks.hosts` how well hosts are. Each row has the regime of its prediction
(`simgpu.evidence`), from which the labels of all simulated times are made. What runs on several GPUs is predicted by
`benchmarks.cluster`.

Rows that a constant of the clock was chosen by are marked (`fitted`) and count in no figure:
- the shares of `simgpu.Costs`: half of timm's models on the RTX 4090;
- operations that a watt allows (`rates`): the largest products of a V100, A40, L4, A100 and H100 of 250 and 350 W, and
  nine of the models on the RTX PRO 6000 Max-Q. None of a T4, A10, L40S or consumer's card;
- the share of the bus: copies of Azure's A100 and H100;
- the best copies (`best_copy_gbps` in gpus.toml);
- the steps of recurrent layers: LSTMs of a V100 and layers of an RTX A6000. None of the V100's others or another card.

Tables with `aside` were collected on 28 November 2026 and predicted at first contact, before anything was changed for
them: 98 rows, off by 20.5 % in the median. Since then a data sheet got the TF32 that it lacked (RTX PRO 6000). No
constant may be chosen by them. They have a figure of their own (`simgpu.error_bar().set_aside`) and count in no other.
NVIDIA's trainings have the reading of images in their time, with batches of its configs.yml. Rates of NCCL are those
that its test calls `busbw`. Of tritonbench's B200 nobody says how many watts it may take. Most recurrent layers
are DeepBench's, without the product of the input.

timm's tables do not say with which options they were made. Their parameter counts show that models were fused
(`--reparam`) in those of torch 2.9 and not in that of 2.4; that models with group norm are half as fast as with batch
norm on the RTX 5090, and nearly as fast on the others, shows that norms ran in float16 (`--fast-norm`) on all but the
5090. Of the RTX PRO 6000 Max-Q 31 models are compared. `benchmarks.compiled` says which compiled ones are; no constant
was chosen by them. NVIDIA's inference has the loss, the hits among the first five and their reading in its time;
Hugging Face's models are written again by timm; of the A100s of both nobody says how much memory they have. The layer
of BERT left its dropout on. Of those far off we know why: maxvit and tiny_vit, whose masks of three dimensions keep the
CPU from fused attention, which CUDA has, and efficientnet_cc, whose convolutions have a group for each image and are
priced as fast as whole ones.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import simgpu
from benchmarks import programs
from course_utils import tables
from simgpu import evidence

MS = 1e6  # in ns
_NO_OPTIONS = ("gpu", "address", "date", "software", "rows", "eager")  # of a table: they say nothing of its programs


def predict(table: dict[str, Any], row: list, known: dict[str, simgpu.Forecast]) -> tuple[float, str]:
    """Return what the clock predicts for a row, in ms to four digits, and its regime; `known` keeps forecasts."""
    name, size, batch = row[:3]
    card = evidence.card(table["gpu"])
    rates = simgpu.Rates(card, simgpu.Costs())
    if table["programs"] == "bus":
        length_ns = rates.copy_ns(size, pinned=True)
        return _digits(length_ns / MS), evidence.regime([simgpu.Record("copy", "copy H2D", "sim:0", 0, length_ns)])
    if table["programs"] == "all-reduce":  # of `batch` GPUs in one machine
        length_ns = simgpu.Cluster(card.name).cost("all_reduce", size, range(row[2]))[0]
        return _digits(length_ns / MS), "several GPUs"
    key = _key(table, row)
    if key not in known:
        known[key] = ahead = programs.forecast(table, name, size, batch)
        if isinstance(ahead, simgpu.CompiledForecast):
            known[_key({**table, "compiled": False}, row)] = ahead.eager
    found = known[key].on(card, host="kernel launch")
    times_ms = 1e3 * found.total_s
    if table["mode"] == "backward":  # whose forward pass was not timed
        times_ms = sum(record.duration_ns for record in found.kernels if record.phase == "backward") / MS
    if table["programs"] in ("product", "gemm", "copy", "times"):
        times_ms /= programs.ROW
    if table.get("copies"):
        nbytes = batch * 3 * size**2 * (2 if table["format"] == "half" else 4)
        times_ms += rates.copy_ns(nbytes, pinned=False) / MS
    return _digits(times_ms), evidence.regime(found.records, found.ranks)


def predict_eager(table: dict[str, Any], row: list, known: dict[str, simgpu.Forecast]) -> float:
    """Return what the clock predicts for a compiled row without torch.compile, in ms, as `predict` does."""
    return predict({**table, **table["eager"], "compiled": False}, row, known)[0]


def _key(table: dict[str, Any], row: list) -> str:
    """Return what a forecast of a row depends on."""
    how = {key: value for key, value in table.items() if value and key not in _NO_OPTIONS}
    return json.dumps([how, *row[:3]], sort_keys=True)


def _digits(number: float) -> float:
    return float(f"{number:.4g}")


def rows(stored: dict[str, Any]) -> list[tuple[dict[str, Any], list]]:
    """Return (table, row) for all rows that this command predicts."""
    return [(table, row) for table in stored["tables"] if table["programs"] != "cluster" for row in table["rows"]]


def again(stored: dict[str, Any], number: int) -> int:
    """Predict so many rows, spread over all tables, and return how many differ from what is stored."""
    every = rows(stored)
    wrong, known = 0, {}
    for table, row in every[:: max(1, len(every) // number)][:number]:
        try:
            found = predict(table, row, known)
        except ImportError:
            print(f"left out, it needs timm: {row[0]} on {table['gpu']}")
            continue
        same = math.isclose(found[0], row[4], rel_tol=2e-3) and found[1] == row[5]
        wrong += not same
        print(f"{'same' if same else 'DIFFERS'}: {row[0]} on {table['gpu']}: {found}, stored {tuple(row[4:6])}")
    return wrong


def store(stored: dict[str, Any]) -> None:
    """Write the file again, with the figures of its rows, one row a line, so that git can compare it."""
    stored["figures"] = evidence.bar(stored).figures()
    lines = [f'"{name}": {json.dumps(stored[name], indent=1)},' for name in ("figures", "cards")]
    lines.append(f'"hosts": {_hosts(stored["hosts"])},')
    parts = []
    for table in stored["tables"]:
        head = json.dumps({key: value for key, value in table.items() if key != "rows"}, indent=1)[:-2]
        body = ",\n".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in table["rows"])
        parts.append(f'{head},\n "rows": [\n{body}\n]}}')
    text = "\n".join(lines) + '\n"tables": [\n' + ",\n".join(parts)
    evidence.FILE.write_text(f"{{{text}\n]}}\n", encoding="utf-8")


def _hosts(found: dict[str, Any]) -> str:
    """Return the part of the file that `benchmarks.hosts` made, one run a line."""
    head = json.dumps({key: value for key, value in found.items() if key != "rows"}, indent=1)[:-2]
    body = ",\n".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in found["rows"])
    return f'{head},\n "rows": [\n{body}\n]}}'


def show(bar: evidence.ErrorBar) -> None:
    print(bar, "\n\nBy regime and GPU:", sep="")
    found = []
    for name, part in bar.by_regime():
        each = ((gpu, part.where(lambda run, gpu=gpu: run.gpu == gpu)) for gpu in part.gpus)
        found += [[name, gpu, f"{len(here.runs):,}", *here.cell()] for gpu, here in each if len(here.runs) > 1]
    print(tables.text(found, ("regime", "GPU", "runs", *bar.head[3:]), right=(2, 3, 4, 5, 6)))
    print("\nThe worst ten of training and inference, each program once:")
    models = [run for run in bar.runs if run.regime in ("training", "inference")]
    worst = {run.program: run for run in sorted(models, key=lambda run: abs(math.log(run.ratio)))}
    for run in sorted(worst.values(), key=lambda run: -abs(math.log(run.ratio)))[:10]:
        print(f"{run.ratio:5.2f}  {run.program} on {run.gpu}, {run.mode}")


def main() -> None:
    stored = json.loads(evidence.FILE.read_text(encoding="utf-8"))
    number = int(sys.argv[1]) if len(sys.argv) > 1 else None
    if number:
        sys.exit(int(again(stored, number) > 0))
    if number is None:
        begin, known = time.perf_counter(), {}
        for done, (table, row) in enumerate(rows(stored), 1):
            row[4:6] = predict(table, row, known)
            if table.get("compiled"):
                row[8] = predict_eager(table, row, known)
            if done % 50 == 0:
                print(f"{done} rows, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
        store(stored)
    bar = evidence.bar(stored)
    show(bar)


if __name__ == "__main__":
    main()
