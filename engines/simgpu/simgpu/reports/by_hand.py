"""Where does a step end in a program that changes its weights itself, without an optimizer of PyTorch?"""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from simgpu.device import state
from simgpu.device.tensor import values_of
from simgpu.ground.nodes import graph_nodes, is_leaf

_MOST_NODES = 10_000  # of a graph in which weights are looked for
_LOOKED_AT = 3  # weights: the smallest ones tell whether all were changed


@dataclass(frozen=True)
class _Weight:
    """What a backward pass gives a gradient: its values and version after the pass, and those of that gradient."""

    tensor: "weakref.ref[torch.Tensor]"
    values: torch.Tensor
    version: int
    gradient: "weakref.ref[torch.Tensor] | None"
    gradient_version: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_Weight":
        gradient = tensor.grad
        return cls(
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

    def before_gradients(self, leaves: Iterable[torch.Tensor]) -> bool:
        """Gradients of these leaves are asked for, as by `torch.autograd.grad`: do as `before_backward` does."""
        changed = any(weight.is_changed for weight in self._weights)
        keeps = changed and any(weight.keeps_gradient for weight in self._weights)
        if changed:
            self.steps += 1
            self.ended(self._alive())
        self._leaves = [weakref.ref(one) for one in leaves if type(values_of(one)) is torch.Tensor]
        self._weights = []
        return keeps

    def after_backward(self) -> None:
        """The backward pass has ended."""
        weights = [one for one in self._alive() if _has_memory(one)]
        smallest = sorted(weights, key=lambda one: one.numel())[:_LOOKED_AT]
        self._weights = [_Weight.of(one) for one in smallest]

    def _alive(self) -> list[torch.Tensor]:
        return [one for one in (reference() for reference in self._leaves) if one is not None]


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether the values of a tensor are there: FSDP gives the memory of whole weights away after each use."""
    values = values_of(tensor)
    return values.layout is torch.strided and values.untyped_storage().nbytes() >= values.nbytes
