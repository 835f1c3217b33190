"""When does the backward pass of a compiled graph begin, and which operators are parts of it?"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from simgpu.ground.nodes import NO_PASS, current_pass
from simgpu.ground.quiet import Meter


def before_backward(result: Any, inputs: Any, charge: Callable[[], None], meter: Meter) -> None:
    """Let a backward pass through a graph `charge` its kernels when it begins, and its operators nothing.

    `meter` is what else would count them, unless its `quiet` is above 0: the clock, or a forecast's recorder.
    """
    edges = [torch.autograd.graph.get_gradient_edge(one).node for one in tree_leaves(inputs) if _needs(one)]
    left = [one.grad_fn for one in tree_leaves(result) if _needs(one) and one.grad_fn is not None]
    seen: set[Any] = set(edges)
    passes = [NO_PASS]

    def before(gradients: Any) -> None:
        number = current_pass()
        if number != passes[0]:
            passes[0] = number
            charge()
        meter.quiet += 1

    def after(ours: Any, others: Any) -> None:
        meter.quiet -= 1

    while left:
        node = left.pop()
        if node in seen or node.name().endswith("AccumulateGrad"):
            continue  # which adds to a gradient outside of the graph
        seen.add(node)
        node.register_prehook(before)
        node.register_hook(after)
        left.extend(following for following, _ in node.next_functions if following is not None)


def _needs(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def run_backward(result: Any, inputs: Any) -> None:
    """Run the backward pass of what a function made of `inputs`, up to these and to parameters; no gradient is kept."""
    outputs = [one for one in tree_leaves(result) if _needs(one)]
    leaves = _leaves(outputs, [one for one in tree_leaves(inputs) if _needs(one)])
    if outputs and leaves:
        with _disable_current_modes():  # where a loss makes them, which is not part of the function
            gradients = [torch.ones_like(one) for one in outputs]
        torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)


def _leaves(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return `inputs`, and the parameters that `outputs` depend on otherwise."""
    seen = {torch.autograd.graph.get_gradient_edge(one).node for one in inputs}
    left = [torch.autograd.graph.get_gradient_edge(one).node for one in outputs]
    leaves = list(inputs)
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name().endswith("AccumulateGrad"):
            leaves.append(node.variable)  # pyright: ignore[reportAttributeAccessIssue]
        left.extend(following for following, _ in node.next_functions if following is not None)
    return leaves
