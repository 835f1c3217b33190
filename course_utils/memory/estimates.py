"""How much memory will this training step need, before anything is allocated?"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import simgpu
from course_utils import plots, tables
from course_utils.devices import resolve
from course_utils.memory.measurements import Measured, Moment, draw_timeline
from simgpu.ledger import Ledger, Parts, by_owner, local, states_of, tensors_in


@dataclass(frozen=True)
class Estimate(tables.Table):
    """What two training steps would have alive on a device, by PyTorch's own shape functions: nothing was allocated.

    - `peak_bytes`: the most bytes alive at once; `parts`: whose they are then (they sum to the peak); `peak_moment`:
      when;
    - `largest`: the most bytes that each owner has alive at any time in the second step;
    - `parameters`: how many parameters the model has; `timeline`: a `Moment` for each operator of both steps.
    """

    device: torch.device
    peak_bytes: int
    parts: Parts
    largest: Parts
    parameters: int
    timeline: tuple[Moment, ...] = field(repr=False)

    @property
    def peak_moment(self) -> Moment:
        """The moment of the peak: the last at which most bytes were alive."""
        return max(reversed(self.timeline), key=lambda moment: moment.bytes)

    head = ("owner", "bytes at the peak", "bytes at most")

    def cells(self) -> list[list[str]]:
        rows = [[name, f"{size:,}", f"{most:,}"] for name, size, most in by_owner(self.parts, self.largest)]
        return [*rows, ["peak", f"{self.peak_bytes:,}", ""]]

    def caption(self) -> str:
        moment = self.peak_moment
        return (
            f"peak {plots.bytes_text(self.peak_bytes)}, predicted for {self.device}, {self.parameters:,} parameters, "
            f"reached in {moment.operator} ({moment.phase})"
        )

    def plot(self, title: str = "Bytes alive after each operator of two training steps") -> Any:
        """Return a figure of the timeline, coloured by what the program would be doing, the peak marked."""
        return draw_timeline(self.timeline, title, "predicted")


def estimate(
    make_model: Callable[[], nn.Module],
    make_batch: Callable[[], Any],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    *,
    step: Callable[[nn.Module, Any, torch.optim.Optimizer], object] | None = None,
    device: torch.device | str | None = None,
    ranks: int | None = None,
) -> Estimate:
    """Run two training steps on tensors that have shapes and no memory, and return the peak by owner.

    - `make_model()` builds the model; `make_batch()` returns `(inputs, target)` or `inputs` alone, and `inputs` is what
      the model takes: a tensor, a tuple of arguments or a dict of keywords; `make_optimizer(parameters)` gets the list
      of parameters: `torch.optim.AdamW` is one. Devices named in them and in `step` may be any: they mean the
      estimate's.
    - `step(model, batch, optimizer)` is the whole training step, `zero_grad` to `step`. By default it is the usual one,
      its loss the cross-entropy over the last dimension for a target of whole numbers, the mean squared error for
      others, the mean of the output without a target.
    - `device`: DEVICE (`devices.pick()`) unless given. On CUDA the operators are those that CUDA would run, elsewhere
      the CPU's, which the simulated GPU runs too.
    - `ranks`: as rank 0 of so many, without any other process. `torch.distributed` is set up when `make_model` is
      called, which may return a DistributedDataParallel, call `fully_shard` or `parallelize_module` on meshes of any
      device type. What is counted is this rank's.

    A step clears the gradients to None first, and what it computes is gone when it ends. Two steps are run because the
    optimizer's state exists from the first `step()` on. Left out: what kernels need inside (workspaces), what the CUDA
    context and libraries take, fragmentation. Under autocast `nn.GRU` and `nn.RNN` are estimated as the CPU runs them,
    the inputs of all time steps at once; the simulated GPU does otherwise, and there some per cent are too many.
    Allocations on CUDA are rounded up to 512 bytes as the allocator does.

    Raises TypeError or ValueError for what is none of these, and RuntimeError where a step needs the values of tensors:
    GradScaler does, LBFGS, Adafactor, ASGD, packed sequences, and `nn.Transformer` that is given a mask and not told
    whether it is causal. Sparse gradients cannot be estimated either.
    """
    device = resolve(device)
    if not callable(make_optimizer):
        raise TypeError(f"make_optimizer must be a function of the list of parameters, not {make_optimizer!r}")
    target = simgpu.fake_device(device)
    with simgpu.fake_program(device, make_model, make_batch, make_optimizer, simgpu.Recorder(), ranks) as (
        model,
        batch,
        optimizer,
    ):
        there = [(tensor, "parameters") for tensor in (*model.parameters(), *model.buffers())]
        there += [(tensor, "activations") for tensor in tensors_in(batch)]
        there += [(tensor, "optimizer") for tensor in states_of(optimizer)]
        with _Predicted(target, there) as ledger:
            for _ in range(2):
                ledger.most_of = {}
                (step or simgpu.usual_step)(model, batch, optimizer)
        count = sum(parameter.numel() for parameter in model.parameters())
    timeline = tuple(Moment(*sample) for sample in ledger.samples)
    return Estimate(device, ledger.peak_bytes, ledger.peak, Parts.of(ledger.most_of), count, timeline)


class _Predicted(Ledger):
    """The account of fake tensors, in which also what was there before counts."""

    places = False
    peak = Parts()
    most_of: dict[str, int]  # the most bytes of each owner, since it was last made empty

    def storage(self, tensor):
        if tensor.layout is not torch.strided:
            raise RuntimeError(f"the estimate has no tensors of layout {tensor.layout}: leave sparse=True out of it")
        return local(tensor).untyped_storage() if tensor.device == self.device else None

    def size_bytes(self, storage):
        grain = 512 if self.device.type == "cuda" else 1  # CUDA's allocator rounds up
        return math.ceil(storage.nbytes() / grain) * grain

    def call(self, func, args, kwargs):
        return simgpu.with_workspace(func, args, func(*args, **kwargs))

    def add(self, storage, tensor, owner, before):
        return super().add(storage, tensor, owner, before=False)

    def note(self, func, made_bytes):
        for owner, size_bytes in self.change_of.items():
            self.most_of[owner] = max(size_bytes, self.most_of.get(owner, 0))
        if self.change_bytes >= self.peak_bytes:  # of equals the last: the state is known after the first step
            self.peak_bytes, self.peak = self.change_bytes, Parts.of(self.change_of)
        self.sample(func)


@dataclass(frozen=True)
class Reconciled(tables.Table):
    """Estimate beside measurement, part by part, as bytes and ratio (estimate / measured; None where both are 0)."""

    estimated: Parts
    measured: Parts
    other_bytes: int
    estimated_peak_bytes: int
    measured_peak_bytes: int
    label: str

    @property
    def ratio(self) -> float:
        """Estimated peak over measured peak."""
        return self.estimated_peak_bytes / self.measured_peak_bytes

    @property
    def head(self) -> tuple[str, ...]:
        return ("owner", "estimate", f"measured ({self.label})", "ratio")

    def cells(self) -> list[list[str]]:
        rows = by_owner(self.estimated, self.measured)
        rows += [("other", 0, self.other_bytes)] if self.other_bytes else []
        rows += [("peak", self.estimated_peak_bytes, self.measured_peak_bytes)]
        return [[name, f"{a:,}", f"{b:,}", f"{a / b:.3f}" if b else "–"] for name, a, b in rows]


def reconcile(estimated: Estimate, measured: Measured) -> Reconciled:
    """Return the estimate beside the measurement of the same program, with the ratio for each part."""
    if not isinstance(estimated, Estimate):
        raise TypeError(f"estimated must be what memory.estimate returned, not {estimated!r}")
    if not isinstance(measured, Measured):
        raise TypeError(f"measured must be what memory.measure returned, not {measured!r}")
    return Reconciled(
        estimated.parts, measured.parts, measured.other_bytes, estimated.peak_bytes, measured.peak_bytes, measured.label
    )
