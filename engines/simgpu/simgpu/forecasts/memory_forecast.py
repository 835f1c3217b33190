"""Memory of a program on fake tensors: bytes alive, and their owners at the peak."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from simgpu.accounting.ledger import Ledger, Record
from simgpu.accounting.owners import Moment, Parts, by_owner
from simgpu.ground import tables
from simgpu.ground.storages import local, states_of, tensors_in
from simgpu.ground.torch_internals import Operator
from simgpu.ground.units import bytes_text


@dataclass(frozen=True, repr=False)
class MemoryForecast(tables.Table):
    """Live bytes of a program's steps, by PyTorch's own shape functions.

    - `peak_bytes`: the most bytes alive at once; `parts`: whose they are then (they sum to the peak); `peak_moment`:
      when;
    - `largest`: the most bytes that each owner has alive at any time in the last step;
    - `parameters`: how many parameters the model has; `timeline`: a `Moment` for each operator of all steps;
    - `device`: what it was made for, None for a GPU that need not be here.
    """

    device: torch.device | None
    peak_bytes: int
    parts: Parts
    largest: Parts
    parameters: int
    timeline: tuple[Moment, ...] = field(repr=False)

    label = "predicted"

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
            f"peak {bytes_text(self.peak_bytes)}, predicted for {self.device or 'a GPU'}, {self.parameters:,} "
            f"parameters, reached in {moment.operator} ({moment.phase})"
        )


class FakeLedger(Ledger):
    """The account of the fake tensors on `target`, in which also what was there before the first step counts."""

    places = False

    def __init__(
        self, target: torch.device, model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer | None
    ) -> None:
        there = [(tensor, "parameters") for tensor in (*model.parameters(), *model.buffers())]
        there += [(tensor, "activations") for tensor in tensors_in(batch)]
        there += [(tensor, "optimizer") for tensor in states_of(optimizer)]
        super().__init__(target, there)
        self.peak = Parts()
        self.most_of: dict[str, int] = {}  # the most bytes of each owner, since `begin_step`
        self.parameters = sum(parameter.numel() for parameter in model.parameters())

    def begin_step(self) -> None:
        self.most_of = {}

    def storage(self, tensor: torch.Tensor) -> torch.UntypedStorage | None:
        if tensor.layout is not torch.strided:
            raise RuntimeError(f"a forecast has no tensors of layout {tensor.layout}: leave sparse=True out of it")
        return local(tensor).untyped_storage() if tensor.device == self.device else None

    def size_bytes(self, storage: torch.UntypedStorage) -> int:
        grain = 512 if self.device.type == "cuda" else 1  # CUDA's allocator rounds up
        return math.ceil(storage.nbytes() / grain) * grain

    def add(self, storage: torch.UntypedStorage, tensor: torch.Tensor | Record, owner: str, before: bool) -> Record:
        return super().add(storage, tensor, owner, before=False)

    def note(self, func: Operator, made_bytes: int) -> None:
        for owner, size_bytes in self.change_of.items():
            self.most_of[owner] = max(size_bytes, self.most_of.get(owner, 0))
        if self.change_bytes >= self.peak_bytes:  # of equals the last: the state is known after the first step
            self.peak_bytes, self.peak = self.change_bytes, Parts.of(self.change_of)
        self.sample(func)

    def forecast(self, device: torch.device | None) -> MemoryForecast:
        """Return the counted memory of `device`."""
        largest = Parts.of(self.most_of)
        return MemoryForecast(device, self.peak_bytes, self.peak, largest, self.parameters, tuple(self.samples))
