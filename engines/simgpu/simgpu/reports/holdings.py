"""Storages alive at the peak by owner and line, and those that grow."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from simgpu.accounting.accounts import Accounts
from simgpu.clock.events import OPTIMIZER
from simgpu.ground import nodes, places
from simgpu.ground.nodes import graph_of, records_graph
from simgpu.ground.storages import memory_of, states_of, tensors_on

OWNERS = ("weights", "gradients", "optimizer", "activations", "others")
MADE = ("activations", "others")  # what passes make, and no parameter, optimizer or gradient keeps
_OFTEN = 256  # storages
_FIRST_STEPS = 3  # after which gradients of what no optimizer has are known: nothing clears them
_OF_LEDGER = {"parameters": "weights"}


@dataclass(slots=True, eq=False)
class Held:
    """One storage: its GPU and bytes, the program's line that made it, in which phase and step, and whose it is."""

    gpu: int
    nbytes: int
    line: str
    phase: str
    step: int
    born: int  # the number of the change of memory that made it
    owner: str
    call: int  # how many calls of models had ended by then
    last: int = -1  # the step in which it went

    def turn(self, by_step: bool) -> int:
        """Return the step that made it, or the call of a model."""
        return self.step if by_step else self.call

    @property
    def grows_with_batch(self) -> bool:
        """Whether a larger batch makes it larger: what forward and backward passes make and nobody keeps."""
        return self.owner in MADE and self.phase != OPTIMIZER and not self.is_data

    @property
    def is_data(self) -> bool:
        """Whether it was made before any model ran and stays for steps, as a dataset that is on the GPU."""
        return self.owner in MADE and self.step == self.call == 0 and self.last > 1


class Holdings:
    """Told of every storage on the simulated GPUs while it is `accounts.watcher`; keeps none alive."""

    def __init__(self, accounts: Accounts, devices: Iterable[torch.device]) -> None:
        self.step, self.calls, self.stepping, self.closure = 0, 0, False, False
        self.first_turns: dict[str, tuple[int, int]] = {}  # the step and the call in which a line first made something
        self.refusals: list[tuple[str, int]] = []  # lines that asked for memory that was not there, and bytes
        self.peaks = Counter()  # bytes, by GPU
        self._accounts, self._changes = accounts, 0
        self._now = Counter()
        self._peak_at = Counter()  # the number of the change after which the peak was reached
        self._live: dict[int, Held] = {}  # by the identity of the account's weak reference
        self.often: Callable[[], None] | None = None  # is called whenever so many storages more were made
        self._ghosts: list[Held] = []  # alive at the peak of their GPU, dead now
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        accounts.bury()
        for ref in accounts.live.values():
            self._add(ref, "", "")
        for device in devices:
            for tensor, owner in tensors_on(device):
                self._label(tensor, _OF_LEDGER.get(owner, owner), only_first=True)
        self._were_there = self._changes

    # ---- told by the account of memory --------------------------------------------------------------------------
    def charged(self, ref: Any) -> None:
        """A storage is new, or has another size than before."""
        if id(ref) in self._live:
            self.gone(ref)
        self._add(ref, places.place(), nodes.phase(self.stepping, self.closure))

    def gone(self, ref: Any) -> None:
        held = self._live.pop(id(ref), None)
        if held is None:
            return
        self._now[held.gpu] -= held.nbytes
        held.last = self.step
        if held.born <= self._peak_at[held.gpu]:
            self._ghosts.append(held)

    def refused(self, nbytes: int) -> None:
        self.refusals.append((places.place(), nbytes))

    def _add(self, ref: Any, line: str, phase: str) -> None:
        index, self._changes = ref.gpu.index, self._changes + 1
        if self._changes % _OFTEN == 0 and self.often is not None:
            self.often()
        owner = "activations" if phase == "forward" or records_graph() else "others"
        self._live[id(ref)] = Held(index, ref.nbytes, line, phase, self.step, self._changes, owner, self.calls)
        if line not in self.first_turns:
            self.first_turns[line] = self.step, self.calls
        self._now[index] += ref.nbytes
        if self._now[index] > self.peaks[index]:
            self.peaks[index], self._peak_at[index] = self._now[index], self._changes
            self._ghosts = [held for held in self._ghosts if held.gpu != index]

    # ---- whose it is --------------------------------------------------------------------------------------------
    def module(self, module: nn.Module) -> None:
        """A module runs: what it holds are weights."""
        if module not in self._seen:
            self._seen.add(module)
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                self._label(tensor, "weights")

    def changed(self, weights: Iterable[torch.Tensor]) -> None:
        """A step changes these weights."""
        for weight in weights:
            self._label(weight, "weights")
            self._label(weight.grad, "gradients")

    def given(self, inputs: Iterable[torch.Tensor | None]) -> None:
        """A model got these: what has no graph is data, and no activation."""
        for tensor in inputs:
            held = self.held(tensor)
            if held is not None and held.owner == "activations" and tensor is not None and graph_of(tensor) is None:
                held.owner = "others"

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        for tensor in states_of(optimizer):
            self._label(tensor, "optimizer")
        for module in list(self._seen) if self.step < _FIRST_STEPS else ():
            for weight in module._parameters.values():
                if weight is not None and weight.is_leaf:  # also of what no optimizer has
                    self._label(weight.grad, "gradients")

    def find_owners(self, devices: Iterable[torch.device]) -> None:
        """Ask Python which tensors are parameters, gradients and states: for a program that is stopped in a step."""
        for device in devices:
            for tensor, owner in tensors_on(device):
                if owner != "activations":
                    self._label(tensor, _OF_LEDGER.get(owner, owner))

    def _label(self, tensor: object, owner: str, only_first: bool = False) -> None:
        held = self.held(tensor)
        if held is not None and not (only_first and held.owner != "others"):
            held.owner = owner

    def held(self, tensor: object) -> Held | None:
        """Return what is known of a tensor's storage, None where it is on no simulated GPU."""
        ref = self._accounts.live.get(memory_of(tensor)) if isinstance(tensor, torch.Tensor) else None
        return None if ref is None else self._live.get(id(ref))

    # ---- what is asked ------------------------------------------------------------------------------------------
    def made_bytes(self, gpu: int = 0) -> int:
        """Return the bytes alive of what was made since the beginning, but for the state of optimizers.

        What was there before may be garbage, and go. An optimizer such as LBFGS keeps some of its last steps.
        """
        self._accounts.bury()
        made = [held for held in self._live.values() if held.gpu == gpu and held.born > self._were_there]
        return sum(held.nbytes for held in made if held.owner != "optimizer")

    def at_peak(self, gpu: int) -> list[Held]:
        """Return what was alive at the peak of a GPU; the bytes add up to it."""
        alive = [held for held in self._live.values() if held.gpu == gpu and held.born <= self._peak_at[gpu]]
        for held in alive:
            held.last = self.step
        return alive + [held for held in self._ghosts if held.gpu == gpu]

    def learned(self) -> list[Held]:
        """Return what is alive of models that learn: weights, gradients, states of optimizers."""
        return [held for held in self._live.values() if held.owner not in MADE]

    def made(self, gpu: int = 0) -> list[Held]:
        """Return what is alive of what forward and backward passes made since the beginning."""
        made = [held for held in self._live.values() if held.gpu == gpu and held.born > self._were_there]
        return [held for held in made if held.owner in MADE]
