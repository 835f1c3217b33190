"""How long would this step take on a GPU that is not here?

    def infer(model, batch, optimizer):
        with torch.inference_mode(), torch.autocast("cuda", torch.float16):
            model(batch)

    timing.estimate(lambda: Transformer(...), lambda: torch.empty(8, 1024, 512), step=infer, spec="RTX 4090")

The program runs on tensors that have shapes and no memory, so that any size is possible; each operator is priced as on
the simulated GPU, whose clock shows the same time.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

import simgpu
from course_utils import gpus, plots, tables

simgpu.remember_autocast()  # of those that a caller of `estimate` is in

_KINDS = {  # the first whose words are in the name of an operator
    "attention": ("attention",),
    "convolutions": ("convolution",),
    "matrix products": ("mm", "dot", "addmv", "mv", "rnn", "lstm", "gru"),
    "normalisation": ("norm",),
    "optimizer": ("_foreach", "_fused"),
    "copies": ("copy_", "clone", "cat", "index", "embedding", "gather", "scatter", "roll", "pad", "stack", "repeat"),
    "reductions": ("sum", "mean", "softmax", "loss", "max", "min", "pool", "cumsum", "var", "argmax", "topk", "sort"),
}
_BOUNDS = ("compute", "bandwidth", "latency")


@dataclass(frozen=True)
class Share:
    """What part of a step one kernel, or one kind of kernels, has: calls, seconds, and what bounds most of them."""

    name: str
    calls: int
    seconds: float
    flops: int
    nbytes: int
    bound: str  # compute, bandwidth or latency


@dataclass(frozen=True, repr=False)
class Estimate(tables.Table):
    """What one step would take on a GPU, in seconds of the simulated clock.

    - `total_s`: from the first launch until the GPU is done; `busy_s`: how long the GPU works in it; `host_s`: how
      long the host launches;
    - `flops`: operations of matrix products, convolutions and attention; `formats`: the number formats of these;
    - `records`: one `simgpu.Record` for each launch, kernel and message, times in ns;
    - `ranks`: how many GPUs do the same at the same time.
    """

    spec: str
    total_s: float
    host_s: float
    flops: int
    formats: tuple[str, ...]
    records: tuple[simgpu.Record, ...] = field(repr=False)
    ranks: int = 1

    @cached_property
    def kernels(self) -> tuple[simgpu.Record, ...]:
        """The records of kernels."""
        return tuple(record for record in self.records if record.kind == "kernel")

    @property
    def busy_s(self) -> float:
        """How long the GPU works, in seconds."""
        return sum(record.duration_ns for record in self.kernels) / 1e9

    @property
    def utilisation(self) -> float:
        """The share of the time, 0 to 1, in which the GPU works; below 1 it waits for the host."""
        return self.busy_s / self.total_s if self.total_s else 0.0

    @property
    def tflops(self) -> float:
        """Matrix operations a second, in 10^12."""
        return self.flops / self.total_s / 1e12 if self.total_s else 0.0

    @property
    def by_kernel(self) -> tuple[Share, ...]:
        """Each operator's share, the longest first."""
        return self._shares(lambda record: record.name)

    @property
    def by_kind(self) -> tuple[Share, ...]:
        """The shares of matrix products, attention, normalisation and so on, the longest first."""
        return self._shares(lambda record: _kind(record.name))

    @property
    def by_bound(self) -> dict[str, float]:
        """Seconds of kernels by what bounds them: compute, bandwidth, or latency, the least time of a kernel."""
        found = {share.name: share.seconds for share in self._shares(lambda record: record.bound)}
        return {bound: found.get(bound, 0.0) for bound in _BOUNDS}

    def _shares(self, key: Callable[[simgpu.Record], str]) -> tuple[Share, ...]:
        groups: dict[str, list[simgpu.Record]] = defaultdict(list)
        for record in self.kernels:
            groups[key(record)].append(record)
        shares = []
        for name, records in groups.items():
            times: dict[str, int] = defaultdict(int)
            for record in records:
                times[record.bound] += record.duration_ns
            sizes = (sum(getattr(record, size) for record in records) for size in ("flops", "nbytes"))
            seconds = sum(times.values()) / 1e9
            shares.append(Share(name, len(records), seconds, *sizes, max(times, key=times.__getitem__)))
        return tuple(sorted(shares, key=lambda share: -share.seconds))

    @property
    def message_s(self) -> float:
        """How long messages between ranks take, in seconds, whether something is computed meanwhile or not."""
        return sum(record.duration_ns for record in self.records if record.kind == "message") / 1e9

    @property
    def _where(self) -> str:
        return f"one {self.spec}" if self.ranks == 1 else f"each of {self.ranks:,} {self.spec}"

    def caption(self) -> str:
        error = simgpu.ERROR_BAR if self.ranks == 1 else simgpu.CLUSTER_ERROR
        times = f"{plots.seconds_text(self.total_s)} a step on {self._where}, {error}"
        work = f"{self.flops:.3g} FLOPs ({', '.join(self.formats) or 'none in matrices'}), {self.tflops:.3g} TFLOP/s"
        said = f", messages {plots.seconds_text(self.message_s)}" if self.message_s else ""
        return f"{times}; GPU busy {self.utilisation:.0%} of it, {len(self.kernels):,} operators{said}; {work}"

    def cells(self) -> list[list[str]]:
        return [
            [share.name, f"{share.calls:,}", plots.seconds_text(share.seconds), f"{share.seconds / self.total_s:.0%}",
             share.bound]
            for share in self.by_kind
        ]  # fmt: skip

    head = ("kind", "operators", "time", "share", "bound by")

    def plot(self) -> Any:
        """Return a figure: the time of each kind of kernel, divided by what bounds it."""
        title = f"{plots.seconds_text(self.total_s)} a step on {self._where}, simulated"
        shares = self.by_kind
        fig, axes = plots.new(title, "ms", height_in=1.1 + 0.3 * len(shares))
        left = [0.0] * len(shares)
        for bound, colour in zip(_BOUNDS, (plots.RED, plots.BLUE, plots.MUTED), strict=True):
            times = dict.fromkeys((share.name for share in shares), 0.0)
            for record in self.kernels:
                times[_kind(record.name)] += record.duration_ns / 1e6 * (record.bound == bound)
            axes.barh([share.name for share in shares], list(times.values()), left=left, color=colour, label=bound)
            left = [a + b for a, b in zip(left, times.values(), strict=True)]
        axes.invert_yaxis()
        plots.legend(axes, title="bound by")
        return fig


def _kind(name: str) -> str:
    return next((kind for kind, words in _KINDS.items() if any(word in name for word in words)), "element by element")


def estimate(
    make_model: Callable[[], nn.Module],
    make_batch: Callable[[], Any],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    step: Callable[[nn.Module, Any, torch.optim.Optimizer | None], object] | None = None,
    *,
    spec: str | None = None,
    costs: simgpu.Costs | None = None,
    cluster: simgpu.Cluster | None = None,
    ranks: int | None = None,
) -> Estimate:
    """Return what one step would take on the GPU `spec`, a row of `gpus`, without allocating anything.

    Or on `ranks` GPUs of a `cluster`, in place of `spec`, without any other process: what is given is then the program
    of rank 0, and all ranks take as long as it. `torch.distributed` is set up when `make_model` is called, which may
    return a DistributedDataParallel, call `fully_shard` or `parallelize_module` on meshes of any device type; messages
    take the time of the links, beside computation where the program's streams let them. Of pipelines, whose ranks
    differ, it says nothing: PyTorch's schedules raise, and what another stage sends comes at once. Estimate the forward
    pass of a stage, and with its backward pass, as the program of one GPU.

    - `make_model()` builds the model, in training mode unless it says otherwise; `make_batch()` returns the batch, as
      if it were on the GPU already; `make_optimizer(parameters)` gets the list of parameters. Devices named in them
      and in `step` may be any: they mean the GPU of the estimate.
    - `step(model, batch, optimizer)`, by default: with an optimizer one training step as in `memory.estimate`, without
      one the forward pass of `batch`. Of a step with an optimizer the second run is priced: its state exists then.
    - `torch.no_grad`, `torch.inference_mode` and `torch.autocast` may stand in `step` or around the call. Autocast of
      any device casts what CUDA casts, also where PyTorch switches "cuda" off because this process has none; its
      format is float16 unless it says another.
    - `costs`: the simulated GPU's own (`simgpu.Costs()`); `simgpu.AT_PEAK` has the data sheet's rates.

    Without TF32 for float32 products and with it for convolutions, as PyTorch's settings say at the call. Left out: the
    host's own work, copies from and to it, torch.compile. Attention that the CPU cannot compute in one
    operator (dropout, a mask that needs gradients, heads of unequal sizes) is priced as the plain formula.

    Raises what `memory.estimate` raises, and ValueError for a GPU that is not in the table or whose maker states no
    rates.
    """
    if (spec is None) == (cluster is None) or (cluster is None) != (ranks is None):
        raise ValueError("give spec, or cluster and ranks")
    row = gpus.get(spec if cluster is None else cluster.gpu, "spec")
    if not row.peak_tflops:
        raise ValueError(f"spec is {row.name!r}, whose maker states no rates")
    recorder = simgpu.Recorder()
    with simgpu.fake_program(None, make_model, make_batch, make_optimizer, recorder, ranks) as program:
        for _ in range(1 if program[2] is None and ranks is None else 2):  # FSDP knows its order after the first step
            recorder.clear()
            with recorder:
                (step or simgpu.usual_step)(*program)
    records, total_ns = simgpu.play(recorder.events, row, costs or simgpu.Costs(), cluster)
    host_s = sum(record.duration_ns for record in records if record.kind == "launch") / 1e9
    flops = recorder.matrix_flops
    return Estimate(row.name, total_ns / 1e9, host_s, flops.total(), tuple(flops), tuple(records), ranks or 1)
