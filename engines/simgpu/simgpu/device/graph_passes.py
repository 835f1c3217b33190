"""Passes of a compiled graph: where backward begins, and which operators belong to it."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from simgpu.ground.nodes import NO_PASS, current_pass, graph_nodes, is_leaf
from simgpu.ground.quiet import Meter


def before_backward(result: Any, inputs: Any, charge: Callable[[], None], meter: Meter) -> None:
    """Charge the kernels of a graph when its backward pass begins, and its operators nothing.

    `meter` is what else would count them, unless its `quiet` is above 0: the clock, or a forecast's recorder.
    """
    passes = [NO_PASS]

    def before(gradients: Any) -> None:
        number = current_pass()
        if number != passes[0]:
            passes[0] = number
            charge()
        meter.quiet += 1

    def after(ours: Any, others: Any) -> None:
        meter.quiet -= 1

    for node in graph_nodes(map(_begin, _needing(result)), ends=map(_begin, _needing(inputs))):
        if not is_leaf(node):  # which adds to a gradient outside of the graph
            node.register_prehook(before)
            node.register_hook(after)


def run_backward(result: Any, inputs: Any) -> None:
    """Run the backward pass of a function's results, up to `inputs` and parameters; no gradient is kept."""
    outputs, given = _needing(result), _needing(inputs)
    nodes = graph_nodes(map(_begin, outputs), ends=map(_begin, given))
    leaves = given + [node.variable for node in nodes if is_leaf(node)]
    if outputs and leaves:
        with _disable_current_modes():  # where a loss makes them, which is not part of the function
            gradients = [torch.ones_like(one) for one in outputs]
        torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)


def _needing(values: Any) -> list[torch.Tensor]:
    """Return the tensors among values that need a gradient."""
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor) and one.requires_grad]


def _begin(tensor: torch.Tensor) -> Any:
    """Return the node at which the graph of a tensor begins."""
    return torch.autograd.graph.get_gradient_edge(tensor).node
