"""Steps of a program that changes its weights itself, without an optimizer of PyTorch."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.ground.nodes import graph_nodes, graph_of, is_leaf
from simgpu.ground.torch_internals import TORCH
from simgpu.reports import events
from simgpu.reports.calls import Then
from simgpu.reports.program import Program, alive

_MOST_NODES = 10_000  # of a graph in which weights are looked for
_LOOKED_AT = 3  # weights: the smallest ones tell whether all were changed
_NEAR = 0.5  # of its norm: a step changes a weight by less, while two pictures of one size differ by more


@dataclass(frozen=True)
class _Weight:
    """What a backward pass gives a gradient, as both were after it, and its place among all that got one."""

    number: int
    then: Then
    values: torch.Tensor
    gradient: Then

    @classmethod
    def of(cls, number: int, tensor: torch.Tensor) -> "_Weight":
        values = values_of(tensor).detach()
        kept = values.to("meta") if state.world.only_shapes else values.clone()
        return cls(number, Then.of(tensor), kept, Then.of(tensor.grad if tensor.is_leaf else None))

    @property
    def is_changed(self) -> bool:
        """Whether the program has changed the values since the backward pass; nothing is asked of a GPU."""
        tensor = self.then.tensor()
        if tensor is None or not _has_memory(tensor):
            return False
        if self.then.now() is None or state.world.only_shapes:
            return self.then.now() is None
        return not torch.equal(values_of(tensor).detach(), self.values)  # as after `weight.data -= …`

    def is_replaced_by(self, other: torch.Tensor) -> bool:
        """Return whether another tensor stands in its place, as after `weights = [w - rate * g for w, g in …]`."""
        return other is not self.then.tensor() and values_of(other).shape == self.values.shape

    def is_near(self, other: torch.Tensor) -> bool:
        """Return whether another tensor has values that a step may have made of these; nothing is asked of a GPU."""
        difference = values_of(other).detach() - self.values
        return bool(difference.any()) and bool(difference.norm() <= _NEAR * self.values.norm())

    @property
    def keeps_gradient(self) -> bool:
        """Whether the gradient is there as the backward pass has left it, and not all zeros."""
        tensor, gradient = self.then.tensor(), self.gradient.now()
        if tensor is None or gradient is None or tensor.grad is not gradient:
            return False
        return state.world.only_shapes or bool(values_of(gradient).any())


class HandSteps:
    """Steps of a program that has built no optimizer; a step ends where its next backward pass begins.

    Nothing tells where the weights are changed.
    """

    def __init__(self, program: Program, tell: Callable[[events.Event], None]) -> None:
        self._program, self._tell = program, tell
        self._leaves: list[weakref.ref[torch.Tensor]] = []  # of the last backward pass
        self._weights: list[_Weight] = []  # the smallest ones of the last backward pass

    def on_backward(self, event: events.Backward) -> None:
        if not self._program.groups:
            nodes = graph_nodes((graph_of(one) for one in event.roots), most=_MOST_NODES)
            self._begin((node.variable for node in nodes if is_leaf(node)), fills=True)

    def on_grad(self, event: events.Grad) -> None:
        if not self._program.groups:
            self._begin(event.inputs, fills=False)

    def on_backward_end(self, event: events.Event) -> None:
        self._end()

    on_grad_end = on_backward_end

    def _begin(self, given: Iterable[torch.Tensor], fills: bool) -> None:
        """Tell that a step has ended if the weights of the last backward pass are others now."""
        leaves = [one for one in map(_unwrapped, given) if type(values_of(one)) is torch.Tensor]
        changed = any(weight.is_changed for weight in self._weights)
        keeps = changed and fills and any(weight.keeps_gradient for weight in self._weights)
        replaced = not changed and self._are_replaced_by(leaves)
        self._leaves = self._leaves if changed else [weakref.ref(one) for one in leaves]
        if changed or replaced:
            self._tell(events.HandStep([one for one in alive(self._leaves) if one.is_leaf], keeps))
        self._leaves = [weakref.ref(one) for one in leaves]
        self._weights = []

    def _end(self) -> None:
        if self._program.groups:
            return
        weights = [(number, one()) for number, one in enumerate(self._leaves)]
        there = [(number, one) for number, one in weights if one is not None and _has_memory(one)]
        smallest = sorted(there, key=lambda pair: pair[1].numel())[:_LOOKED_AT]
        self._weights = [_Weight.of(number, one) for number, one in smallest]

    def _are_replaced_by(self, leaves: list[torch.Tensor]) -> bool:
        """Return whether other tensors stand in the places of the weights, with values that a step may have made."""
        if not self._weights or len(leaves) != len(self._leaves):
            return False
        pairs = [(weight, leaves[weight.number]) for weight in self._weights]
        if not all(weight.is_replaced_by(other) and _has_memory(other) for weight, other in pairs):
            return False
        return state.world.only_shapes or any(weight.is_near(other) for weight, other in pairs)


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the program's tensor of one that `torch.func` has wrapped."""
    functorch = TORCH._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether the values of a tensor are there: FSDP gives the memory of whole weights away after each use."""
    values = values_of(tensor)
    return values.layout is torch.strided and values.untyped_storage().nbytes() >= values.nbytes
