"""How wrong is the simulated clock? Times that others measured and published, beside the times that it predicts.

    pip install --no-deps timm; python -m benchmarks.published [rows]

Measured: timm's tables for three GPUs in inference and one in training, images a second, automatic mixed precision in
float16, channels first, eager. Predicted: the same models as `simgpu.forecast` runs and prices them.
The shares of `simgpu.Costs` were chosen on half of the models on the RTX 4090 (`fitted`). Facts and predictions are
stored in course_utils/timing/published.json, from which the course's label and `timing.error_bar` are made.

The tables do not say with which options they were made. Their parameter counts show that models were fused
(`--reparam`) in those of torch 2.9 and not in that of 2.4; that models with group norm are half as fast as with batch
norm on the RTX 5090, and nearly as fast on the others, shows that norms ran in float16 (`--fast-norm`) on all but the
5090. The table of the RTX PRO 6000 Max-Q is left out, since that card is no row of `gpus`: at 440 TFLOP/s in fp16, four
times the 110 in fp32 that technical.city states, 406 models were predicted to take 0.73 of the measured time in the
median. A probable cause: its 300 W, half of the full card's, do not hold that rate, and the clock knows no watts.

With `rows`, that many models are priced and nothing is stored.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import math
import sys
import time
import types
import warnings
from unittest import mock

import torch

import simgpu
from course_utils import gpus
from course_utils.timing.published import FILE, ErrorBar, Run, error_bar

TABLES = ("RTX 4090", "RTX 5090", "RTX 3090")  # inference; training: the last
_FUSED = {"RTX 4090", "RTX 5090"}
_FUSES = ("reparameterize", "fuse", "switch_to_deploy")  # methods that timm looks for
_FAST_NORM = {"RTX 4090", "RTX 3090"}


class _Name(type):
    """Makes classes that have every attribute: its own name."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Anything(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})


class _NoTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for torchvision, which timm imports for its images, and this command has none."""

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("torchvision") else None

    def create_module(self, spec):
        names = type("Names", (type,), {"__getattr__": lambda cls, name: name})
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: (
            names(name, (), {}) if name[0] != "_" else object.__getattribute__(module, name)
        )
        return module

    def exec_module(self, module):
        pass


def load_timm():
    """Return timm, also where torchvision is missing. Ends with one sentence where timm is missing."""
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_NoTorchvision())
    try:
        import timm
    except ImportError as error:
        raise SystemExit(
            f"This command needs timm, which the course does not: pip install --no-deps timm ({error})"
        ) from None
    return timm


def forecast(timm, model: str, size: int, batch: int, *, train: bool = False, fuse: bool = False, norm: bool = False):
    """Return the forecast of a first step of timm's benchmark script, and whether fusing and fast norms matter."""
    found = {}
    timm.layers.set_fast_norm(norm)
    timm.layers.set_fused_attn(not train)  # the table of training is older than the fused kernel

    def make_model():
        network = timm.create_model(model)
        parts = list(network.modules())
        found["fuse"] = any(
            hasattr(part, name) for part in parts for name in ("reparameterize", "fuse", "switch_to_deploy")
        )
        found["norm"] = any(hasattr(part, "_fast_norm") for part in parts)
        return timm.utils.reparameterize_model(network) if fuse and found["fuse"] else network.train(train)

    def make_batch():
        return torch.empty(batch, 3, size, size), torch.empty(batch, dtype=torch.long)

    return simgpu.forecast(make_model, make_batch, step=first_step if train else inference), found


def inference(network, batch, _) -> None:
    with torch.inference_mode(), torch.autocast("cuda", torch.float16):
        network.eval()(batch[0])


def first_step(network, batch, _) -> None:
    """Train for a step with a new optimizer, whose momentum does not exist before."""
    parameters = list(network.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, foreach=False)
    with torch.autocast("cuda", torch.float16):
        output = network(batch[0])
        output = output[0] if isinstance(output, tuple) else output
        torch.nn.functional.cross_entropy(output, batch[1]).backward()
    optimizer.step()


def rate(ahead: simgpu.Forecast, gpu: str, batch: int) -> float:
    """Return images a second of a step on `gpu`, to four digits."""
    return float(f"{batch / ahead.on(gpu).total_s:.4g}")


def infer(timm, row: list) -> None:
    """Write predictions into a row: model, size, fitted, for each GPU batch, measured and predicted images a second."""
    known, matters = {}, {"fuse": True, "norm": True}
    for gpu, cell in zip(TABLES, row[3:], strict=True):
        fuse, norm = (gpu in _FUSED and matters["fuse"]), (gpu in _FAST_NORM and matters["norm"])
        if (cell[0], fuse, norm) not in known:
            ahead, matters = forecast(timm, *row[:2], cell[0], fuse=fuse, norm=norm)
            known[cell[0], fuse and matters["fuse"], norm and matters["norm"]] = ahead
            fuse, norm = fuse and matters["fuse"], norm and matters["norm"]
        cell[2:] = [rate(known[cell[0], fuse, norm], gpu, cell[0])]


def train(timm, row: list) -> None:
    """The same for a row of the table of training."""
    cell = row[3]
    cell[2:] = [rate(forecast(timm, *row[:2], cell[0], train=True)[0], TABLES[-1], cell[0])]


def pytorchs_own(timm, rows: list) -> ErrorBar:
    """Return the same for the operator cost model of PyTorch's own estimator, in inference on the RTX 4090.

    It asks CUDA for the rates of the GPU of this process: here it is given those of the data sheet.
    """
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator
    from torch.utils import _runtime_estimation as formulas

    spec, runs = gpus.get(TABLES[0]), []
    formats = {torch.float16: "fp16", torch.float32: "fp32"}
    given = {
        "get_device_tflops": lambda dtype: spec.peak_tflops[formats.get(dtype, "fp32")],
        "get_gpu_dram_gbps": lambda: spec.bandwidth_gbps,
    }
    for model, size, _fitted, (batch, measured, _), *_ in rows:
        estimator = RuntimeEstimator()("operator-level-cost-model")

        def step(network, images, _, estimator=estimator):
            claimed = mock.patch.object(torch.cuda, "is_available", lambda: True)
            amp, silent = torch.autocast("cuda", torch.float16), contextlib.redirect_stdout(io.StringIO())
            with mock.patch.multiple(formulas, **given), torch.no_grad(), amp, claimed, silent, estimator:
                network.eval()(images)

        make_batch = lambda size=size, batch=batch: torch.empty(batch, 3, size, size)  # noqa: E731
        simgpu.forecast(lambda model=model: timm.create_model(model), make_batch, step=step)
        runs.append(Run(model, TABLES[0], False, False, batch, measured, batch / estimator.total_runtime * 1e3))
    return ErrorBar(tuple(runs), "PyTorch's own estimator")


def main() -> None:
    timm = load_timm()
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else None
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    begin, work = time.perf_counter(), [(infer, row) for row in stored["inference"][:limit]]
    work += [(train, row) for row in stored["training"][:limit]]
    for number, (price, row) in enumerate(work, 1):
        with warnings.catch_warnings(action="ignore"):  # timm's, of names that it has changed
            price(timm, row)
        if number % 50 == 0:
            print(f"{number} of {len(work)} models, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    if limit is None:
        FILE.write_text(one_row_a_line(stored), encoding="utf-8")
    found = error_bar(stored | {name: stored[name][:limit] for name in ("inference", "training")})
    print(found, "\n\nThe worst ten, each model once:", sep="")
    worst = {run.model: run for run in sorted(found.runs, key=lambda run: abs(math.log(run.ratio)))}
    for run in sorted(worst.values(), key=lambda run: -abs(math.log(run.ratio)))[:10]:
        mode = "training" if run.training else "inference"
        print(f"{run.ratio:5.2f}  {run.model} on {run.gpu}, {mode}: {cause(run)}")
    same = error_bar({**stored, "inference": stored["inference"][:40], "training": []})
    print("\nThe first forty models on the RTX 4090, beside PyTorch's own estimator:")
    for name, bar in (("this clock", same.where(lambda run: run.gpu == TABLES[0])),
                      ("PyTorch's", pytorchs_own(timm, stored["inference"][:40]))):  # fmt: skip
        low, high = bar.deciles
        print(f"{name}: median error {bar.median_error:.1%}, deciles {low:.2f} and {high:.2f}, "
              f"rank correlation {bar.rank_correlation:.3f}")  # fmt: skip


def one_row_a_line(stored: dict) -> str:
    """Return JSON that git can compare: one model a line."""
    parts = []
    for name, value in stored.items():
        rows = isinstance(value, list)
        text = (
            ",\n".join(json.dumps(row, separators=(",", ":")) for row in value) if rows else json.dumps(value, indent=1)
        )
        parts.append(f'"{name}": ' + (f"[\n{text}\n]" if rows else text))
    return "{" + ",\n".join(parts) + "}\n"


def cause(run: Run) -> str:
    """Return why the clock is wrong about a model, as far as that is known."""
    return next((text for name, text in CAUSES.items() if name in run.model), "not known")


_MASK = "its mask of three dimensions keeps the CPU from fused attention, which CUDA has: priced as the plain formula"
CAUSES = {  # part of a model's name: why
    "maxvit": _MASK,
    "tiny_vit": _MASK,
    "efficientnet_cc": "one group of channels for each image: grouped convolutions are priced as fast as whole ones",
}


if __name__ == "__main__":
    main()
