"""Simulated GPU against the real one: the same twenty programs on both, where a CUDA device is present.

    python -m benchmarks.against_cuda                  # this machine's CUDA GPU against its simulation
    python -m benchmarks.against_cuda --simulate T4    # the simulated half alone, on any machine

Times are ms between two events around one run, after a run that is not counted; on CUDA the median of several. Memory
is the peak in MiB during that run, less what was alive before the program was built: what libraries keep for good on
CUDA (workspaces of cuBLAS) does not count. With COURSE_RECORD=1 the table goes into the recorded file of the GPU.
The simulated GPU is never enabled beside a real one, so its half runs in a child process that sees no CUDA device.
Exit codes: 0 done, or no CUDA device here; 2 the data sheets lack this GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

import simgpu
from course_utils import gpus, recorded

ROOT = Path(__file__).parents[1]
Run = Callable[[], object]
Program = Callable[[torch.device], Run]


class Figures(NamedTuple):
    """What one run of a program took."""

    ms: float
    mib: float


# ---- the programs: each builds what it needs on a device and returns the function that is one run -------------------
def operation(function: Callable, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Program:
    """Return the program that calls `function` with tensors of ones."""

    def build(device) -> Run:
        inputs = [torch.ones(shape, dtype=dtype, device=device) for shape in shapes]
        return lambda: function(*inputs)

    return build


def in_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return `a @ b` with float32 rounded as tensor cores take it, and go back to PyTorch's default."""
    torch.set_float32_matmul_precision("high")
    product = a @ b
    torch.set_float32_matmul_precision("highest")
    return product


def embedding(device) -> Run:
    table = torch.ones(20_000, 256, device=device)
    tokens = (torch.arange(2**14) * 7919 % 20_000).to(device)
    return lambda: F.embedding(tokens, table)


def to_device(device, pinned: bool) -> Run:
    x = torch.ones(2**23).pin_memory() if pinned else torch.ones(2**23)
    return lambda: x.to(device, non_blocking=pinned)


def step(device, model: nn.Module, x: torch.Tensor, classes: int, optimizer=torch.optim.AdamW, forward=None) -> Run:
    """Return one training step of `model`; the last dimension of its output holds the scores of the classes."""
    model, x = model.to(device), x.to(device)
    optimizer = optimizer(model.parameters(), lr=1e-3, foreach=True)

    def run() -> None:
        optimizer.zero_grad()
        scores = (forward or model)(x).reshape(-1, classes)
        F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64, device=device)).backward()
        optimizer.step()

    return run


def mlp_step(device, optimizer) -> Run:
    model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return step(device, model, torch.ones(128, 784), 10, optimizer)


def cnn_step(device) -> Run:
    blocks = nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return step(device, model, torch.ones(32, 3, 32, 32), 10)


def transformer_step(device) -> Run:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(1000, 256), encoder, nn.Linear(256, 1000))
    return step(device, model, torch.arange(256).reshape(2, 128), 1000)


def checkpointed_step(device) -> Run:
    """Return a step that keeps only the inputs of its four blocks and computes their inside twice."""
    blocks = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)]
    model = nn.Sequential(*blocks, nn.Linear(256, 10))
    forward = partial(checkpoint_sequential, model, len(model), use_reentrant=False)
    return step(device, model, torch.ones(512, 256), 10, forward=forward)


PROGRAMS: dict[str, Program] = {
    "elementwise, 8 million": operation(lambda x: x + 1, (2**23,)),
    "matmul fp32, 1024": operation(torch.matmul, (1024, 1024), (1024, 1024)),
    "matmul tf32, 1024": operation(in_tf32, (1024, 1024), (1024, 1024)),
    "matmul fp16, 512": operation(torch.matmul, (512, 512), (512, 512), dtype=torch.float16),  # slow on a CPU
    "matmul bf16, 512": operation(torch.matmul, (512, 512), (512, 512), dtype=torch.bfloat16),
    "sum of 8 million": operation(torch.sum, (2**23,)),
    "softmax": operation(lambda x: torch.softmax(x, dim=1), (4096, 1024)),
    "layer norm": operation(lambda x, *weights: F.layer_norm(x, (1024,), *weights), (4096, 1024), (1024,), (1024,)),
    "embedding": embedding,
    "conv2d": operation(partial(F.conv2d, padding=1), (8, 64, 56, 56), (64, 64, 3, 3)),
    "attention": operation(partial(F.scaled_dot_product_attention, is_causal=True), *[(4, 8, 512, 64)] * 3),
    "H2D pageable, 32 MiB": partial(to_device, pinned=False),
    "H2D pinned, 32 MiB": partial(to_device, pinned=True),
    "D2H, 32 MiB": operation(torch.Tensor.cpu, (2**23,)),
    "200 small operations": operation(lambda x: [x.mul_(0.5) for _ in range(200)], (1000,)),
    "MLP step, SGD": partial(mlp_step, optimizer=torch.optim.SGD),
    "MLP step, AdamW": partial(mlp_step, optimizer=torch.optim.AdamW),
    "CNN step": cnn_step,
    "Transformer step": transformer_step,
    "checkpointed step": checkpointed_step,
}


# ---- measuring ------------------------------------------------------------------------------------------------------
def measure(build: Program, device: torch.device, repeats: int) -> Figures:
    """Return the median time of `repeats` runs of a program on `device`, and its peak memory."""
    module = getattr(torch, device.type)
    torch.manual_seed(0)
    gc.collect()
    before = module.memory_allocated()
    run = build(device)
    run()
    module.synchronize()
    module.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        begin, end = (module.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        module.synchronize()
        times.append(begin.elapsed_time(end))
    return Figures(statistics.median(times), (module.max_memory_allocated() - before) / 2**20)


def simulate(spec: str) -> dict[str, Figures]:
    """Run every program on the simulated GPU `spec` of this process. Its clock is exact, so each runs once."""
    simgpu.enable(gpus=1, spec=spec, capacity="64 GiB")  # more than any program takes
    return {name: measure(build, torch.device("sim", 0), repeats=1) for name, build in PROGRAMS.items()}


def simulate_in_child(spec: str) -> dict[str, Figures]:
    """Return what `simulate` gives in a process of its own, in which there is no CUDA device."""
    command = [sys.executable, "-m", "benchmarks.against_cuda", "--simulate", spec, "--json"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {name: Figures(*figures) for name, figures in json.loads(done.stdout).items()}


def measure_cuda() -> dict[str, Figures]:
    """Run every program on the current CUDA device. Convolutions keep plain fp32, as the simulated GPU prices them."""
    torch.backends.cudnn.allow_tf32 = False
    for build in PROGRAMS.values():
        measure(build, torch.device("cuda"), repeats=1)  # libraries load and take workspaces that they keep
    return {name: measure(build, torch.device("cuda"), repeats=11) for name, build in PROGRAMS.items()}


# ---- tables ---------------------------------------------------------------------------------------------------------
def half(found: Mapping[str, Figures]) -> str:
    """Return the simulated half as text: program, ms, MiB."""
    rows = [f"{name:24} {figures.ms:12.4f} {figures.mib:12.2f}" for name, figures in found.items()]
    return "\n".join([f"{'program':24} {'predicted ms':>12} {'predicted MiB':>13}", *rows])


def table(predicted: Mapping[str, Figures], measured: Mapping[str, Figures]) -> str:
    """Return both halves as text; a ratio is predicted divided by measured, the last row holds the medians of both."""
    heads = "predicted ms", "measured ms", "ratio", "predicted MiB", "measured MiB", "ratio"
    lines = [f"{'program':24} " + " ".join(f"{head:>13}" for head in heads)]
    for name, p in predicted.items():
        m = measured[name]
        cells = p.ms, m.ms, p.ms / m.ms, p.mib, m.mib, p.mib / m.mib
        lines.append(f"{name:24} " + " ".join(f"{cell:13.3f}" for cell in cells))
    time, memory = (statistics.median(ratios(predicted, measured, field)) for field in Figures._fields)
    return "\n".join([*lines, f"{'median ratio':24} {'':27} {time:13.3f} {'':27} {memory:13.3f}"])


def ratios(predicted: Mapping[str, Figures], measured: Mapping[str, Figures], field: str) -> list[float]:
    """Return predicted divided by measured for each program."""
    return [getattr(figures, field) / getattr(measured[name], field) for name, figures in predicted.items()]


def record(predicted: Mapping[str, Figures], measured: Mapping[str, Figures]) -> None:
    """Hand the table to `recorded`, which writes it where COURSE_RECORD=1; the x axis names the programs' numbers.

    What was measured is stored, and its ratios: a simulated number itself never gets into a recorded file.
    """
    numbers = list(range(1, len(predicted) + 1))
    xlabel = "program: " + "; ".join(f"{number} {name}" for number, name in enumerate(predicted, 1))
    for field, name, unit in (("ms", "time", "ms"), ("mib", "peak_memory", "MiB")):
        live, share = [getattr(measured[p], field) for p in predicted], ratios(predicted, measured, field)
        for part, ys, ylabel in (("measured", live, unit), ("ratio", share, "simulated / measured")):
            key = f"00.simulator_against_cuda.{name}_{part}"
            recorded.compare(key, numbers, ys, xlabel=xlabel, ylabel=ylabel)


def main(arguments: list[str] | None = None) -> int:
    """Compare, or print the simulated half alone; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against_cuda", description=__doc__.split("\n")[0])
    parser.add_argument("--simulate", metavar="GPU", help="the simulated half alone, for a GPU of the data sheets")
    parser.add_argument("--json", action="store_true", help="with --simulate: JSON, a list of ms and MiB by program")
    options = parser.parse_args(arguments)
    if not options.simulate and not torch.cuda.is_available():
        print("There is no CUDA device here, so nothing was compared.")
        return 0
    name = options.simulate or torch.cuda.get_device_name()
    row = gpus.find(name)
    if row is None:
        print(f"course_utils.gpus has no data sheet of {name!r}, so its simulation has no rates.", file=sys.stderr)
        return 2
    if options.simulate:
        print((json.dumps if options.json else half)(simulate(row.name)))
        return 0
    predicted, measured = simulate_in_child(row.name), measure_cuda()
    print(f"{name}, torch {torch.__version__}; predicted: simulated {row.name}; ratio: predicted / measured")
    print(table(predicted, measured))
    if os.environ.get("COURSE_RECORD") == "1":
        record(predicted, measured)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
