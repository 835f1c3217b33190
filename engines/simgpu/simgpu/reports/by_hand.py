"""Where does a step end in a program that changes its weights itself, without an optimizer of PyTorch?"""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.ground.nodes import graph_nodes, is_leaf
from simgpu.ground.torch_internals import TORCH

_MOST_NODES = 10_000  # of a graph in which weights are looked for
_LOOKED_AT = 3  # weights: the smallest ones tell whether all were changed
_NEAR = 0.5  # of its norm: a step changes a weight by less, while two pictures of one size differ by more


@dataclass(frozen=True)
class _Weight:
    """What a backward pass gives a gradient: its values and version after the pass, and those of that gradient.

    `number` is its place among all that got one.
    """

    number: int
    tensor: "weakref.ref[torch.Tensor]"
    values: torch.Tensor
    version: int
    gradient: "weakref.ref[torch.Tensor] | None"
    gradient_version: int

    @classmethod
    def of(cls, number: int, tensor: torch.Tensor) -> "_Weight":
        gradient = tensor.grad if tensor.is_leaf else None
        return cls(
            number,
            weakref.ref(tensor),
            values_of(tensor).detach().clone(),
            tensor._version,
            None if gradient is None else weakref.ref(gradient),
            0 if gradient is None else gradient._version,
        )

    @property
    def is_changed(self) -> bool:
        """Whether the program has changed the values since the backward pass; nothing is asked of a GPU."""
        tensor = self.tensor()
        if tensor is None or not _has_memory(tensor):
            return False
        if tensor._version != self.version or state.world.only_shapes:
            return tensor._version != self.version
        return not torch.equal(values_of(tensor).detach(), self.values)  # as after `weight.data -= …`

    def is_replaced_by(self, other: torch.Tensor) -> bool:
        """Return whether another tensor stands in its place, as after `weights = [w - rate * g for w, g in …]`."""
        return other is not self.tensor() and values_of(other).shape == self.values.shape

    def is_near(self, other: torch.Tensor) -> bool:
        """Return whether another tensor has values that a step may have made of these; nothing is asked of a GPU."""
        values = values_of(other).detach()
        difference = values - self.values
        return bool(difference.any()) and bool(difference.norm() <= _NEAR * self.values.norm())

    @property
    def keeps_gradient(self) -> bool:
        """Whether the gradient is there as the backward pass has left it, and not all zeros."""
        tensor, gradient = self.tensor(), None if self.gradient is None else self.gradient()
        if tensor is None or gradient is None or tensor.grad is not gradient:
            return False
        unchanged = gradient._version == self.gradient_version
        return unchanged and (state.world.only_shapes or bool(values_of(gradient).any()))


class HandWatch:
    """Watches the weights of a program that has built no optimizer; `ended(weights)` is told of each step."""

    def __init__(self) -> None:
        self.steps = 0  # that were made by hand
        self.ended: Callable[[list[torch.Tensor]], None] = lambda weights: None
        self._leaves: list[weakref.ref[torch.Tensor]] = []  # of the last backward pass
        self._weights: list[_Weight] = []  # the smallest ones of the last backward pass

    def before_backward(self, roots: Any) -> bool:
        """A backward pass begins at `roots`; return whether a step by hand has left it the gradients of the last one.

        The step ends here: where the weights are changed, nobody is told.
        """
        given = roots if isinstance(roots, list | tuple) else [roots]
        nodes = graph_nodes((one.grad_fn for one in given if isinstance(one, torch.Tensor)), most=_MOST_NODES)
        return self.before_gradients(node.variable for node in nodes if is_leaf(node))

    def before_gradients(self, given: Iterable[torch.Tensor]) -> bool:
        """Gradients of these tensors are asked for, as by `torch.autograd.grad`: do as `before_backward` does."""
        leaves = [one for one in map(_unwrapped, given) if type(values_of(one)) is torch.Tensor]
        changed = any(weight.is_changed for weight in self._weights)
        keeps = changed and any(weight.keeps_gradient for weight in self._weights)
        replaced = not changed and self._are_replaced_by(leaves)
        self._leaves = self._leaves if changed else [weakref.ref(one) for one in leaves]
        if changed or replaced:
            self.steps += 1
            self.ended(self._alive())
        self._leaves = [weakref.ref(one) for one in leaves]
        self._weights = []
        return keeps

    def after_backward(self) -> None:
        """The backward pass has ended."""
        alive = [(number, one()) for number, one in enumerate(self._leaves)]
        weights = [(number, one) for number, one in alive if one is not None and _has_memory(one)]
        smallest = sorted(weights, key=lambda pair: pair[1].numel())[:_LOOKED_AT]
        self._weights = [_Weight.of(number, one) for number, one in smallest]

    def _are_replaced_by(self, leaves: list[torch.Tensor]) -> bool:
        """Return whether other tensors stand in the places of the weights, with values that a step may have made."""
        if not self._weights or len(leaves) != len(self._leaves):
            return False
        pairs = [(weight, leaves[weight.number]) for weight in self._weights]
        if not all(weight.is_replaced_by(other) and _has_memory(other) for weight, other in pairs):
            return False
        return state.world.only_shapes or any(weight.is_near(other) for weight, other in pairs)

    def _alive(self) -> list[torch.Tensor]:
        alive = (reference() for reference in self._leaves)
        return [one for one in alive if one is not None and one.is_leaf]


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
