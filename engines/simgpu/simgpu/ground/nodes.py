"""Nodes of autograd's graph, the running one, new ones, those of a whole graph; and the phase of a training step."""

import math
import threading
from collections.abc import Iterable
from typing import Any

import torch

current_pass = torch._C._current_graph_task_id  # the number of the backward pass that runs
NO_PASS = -1  # where none does
_OF_LEAVES = 2**64 - 1  # the number of each node that adds a gradient to its parameter's


class _Here(threading.local):
    last: tuple[int, int] = (NO_PASS, 0)
    create_graph: bool = False  # as the backward pass that runs was told


here = _Here()
_passes = [NO_PASS]  # the number of the latest backward pass; a later one has a higher number


def in_backward() -> bool:
    """Return whether this thread runs a backward pass."""
    return current_pass() != NO_PASS


def records_graph() -> bool:
    """Return whether a graph is recorded in this thread's backward pass: by a checkpoint, or for `create_graph`."""
    return in_backward() and torch.is_grad_enabled()


def phase(stepping: bool = False, closure: bool = False) -> str:
    """Return the phase of the program: "forward", "backward", "recomputation" or "optimizer step".

    `stepping`: an optimizer's step runs; `closure`: it was given a function that does forward and backward passes.
    """
    if stepping and not closure:
        return "optimizer step"
    if not in_backward():
        return "optimizer step" if stepping and not torch.is_grad_enabled() else "forward"
    return "recomputation" if torch.is_grad_enabled() and not here.create_graph else "backward"


def begun() -> tuple[str, ...]:
    """Return what has begun since the last call in this thread: "backward pass", "node" or, for a parameter,
    "accumulate"."""
    backward = current_pass()
    node = None if backward == NO_PASS else torch._C._current_autograd_node()
    if node is None:
        return ()
    number, kind = node._sequence_nr(), "node"
    if number == _OF_LEAVES and hasattr(node, "variable"):
        number, kind = id(node.variable), "accumulate"  # pyright: ignore[reportAttributeAccessIssue]
    if here.last == (backward, number):
        return ()
    here.last = backward, number
    if backward <= _passes[0]:
        return (kind,)
    _passes[0] = backward
    return "backward pass", kind


def graph_of(tensor: torch.Tensor) -> Any:
    """Return the `grad_fn` of a tensor, None where PyTorch refuses it, as of a view by `no_grad` that went stale."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def graph_nodes(begins: Iterable[Any], ends: Iterable[Any] = (), most: float = math.inf) -> list[Any]:
    """Return the nodes of the graphs that begin with these, each once, up to `ends`, which are left out."""
    waiting, seen, nodes = list(begins), set(ends), list[Any]()
    while waiting and len(nodes) < most:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes.append(node)
            waiting += [below for below, _ in node.next_functions]
    return nodes


def is_leaf(node: Any) -> bool:
    """Return whether a node adds a gradient to that of its `variable`, such as a parameter."""
    return node.name().endswith("AccumulateGrad")
