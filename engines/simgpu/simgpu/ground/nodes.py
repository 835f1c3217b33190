"""Which node of autograd's graph runs an operator, and is it a new one?"""

import threading

import torch

current_pass = torch._C._current_graph_task_id  # the number of the backward pass that runs
NO_PASS = -1  # where none does
_OF_LEAVES = 2**64 - 1  # the number of each node that adds a gradient to its parameter's


class _Here(threading.local):
    last: tuple[int, int] = (NO_PASS, 0)


_here = _Here()


def in_backward() -> bool:
    """Return whether this thread runs a backward pass."""
    return current_pass() != NO_PASS


def new_node() -> str:
    """Return what has begun since the last call in this thread: "node", "accumulate" for a parameter's, or ""."""
    backward = current_pass()
    if backward == NO_PASS:
        return ""
    node = torch._C._current_autograd_node()
    if node is None:
        return ""
    number, kind = node._sequence_nr(), "node"
    if number == _OF_LEAVES and hasattr(node, "variable"):
        number, kind = id(node.variable), "accumulate"  # pyright: ignore[reportAttributeAccessIssue]
    if _here.last == (backward, number):
        return ""
    _here.last = backward, number
    return kind
