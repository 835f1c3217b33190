"""Kind of a message between ranks, and the bytes that this rank puts into it.

`torch.distributed` sends every operation through PyTorch's dispatcher, those that `DistributedDataParallel` starts in
the backward pass included, as operators of the namespaces below.
"""

import re
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from simgpu.ground.torch_internals import TORCH, Args, Operator

__all__ = ["NAMESPACES", "collective", "group_of", "is_one", "load", "message"]

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")

# Names of operators without underscores at the ends and forms such as `_base`: name in torch.distributed, and which
# argument holds this rank's own part. Only the operators of c10d write into outputs that they are given first.
_COLLECTIVES = {
    "allreduce": ("all_reduce", 0), "broadcast": ("broadcast", 0), "reduce": ("reduce", 0), "gather": ("gather", 1),
    "allgather": ("all_gather", 1), "scatter": ("scatter", 0), "reduce_scatter": ("reduce_scatter", 1),
    "alltoall": ("all_to_all", 1), "barrier": ("barrier", None), "monitored_barrier": ("barrier", None),
}  # fmt: skip
_FORMS = re.compile(r"(_base|_coalesced|_into_tensor|_tensor|_single|_out)+$")


def is_one(func: Operator) -> bool:
    """Return whether an operator is one between ranks, or the wait for its end."""
    if func.namespace not in NAMESPACES:
        return False
    grouped = any(argument.name in ("process_group", "group_name") for argument in func._schema.arguments)
    return grouped or func._overloadpacket.__name__ == "wait_tensor"


def collective(func: Operator, args: Args) -> tuple[str, int] | None:
    """Return the name of a collective and the bytes of this rank's own part; None where `func` is none."""
    name = _FORMS.sub("", func._overloadpacket.__name__.strip("_"))
    functional = func.namespace != "c10d"
    known = _COLLECTIVES.get(re.sub("^all_", "all", name).replace("allto_", "allto") if functional else name)
    if known is None:
        return None
    index = 0 if functional and known[1] is not None else known[1]
    return known[0], 0 if index is None else _bytes(args[index])


def load(func: Operator, args: Args, result: Any) -> int:
    """Return the bytes by which this rank's part of a collective takes its time, once the operator gave `result`.

    They are those of its own part, but for an all-to-all, in which a rank may get more than it gives.
    """
    kind, given_bytes = collective(func, args) or ("", 0)
    if kind != "all_to_all":
        return given_bytes
    return max(given_bytes, _bytes(args[0] if func.namespace == "c10d" else result))


def message(func: Operator, args: Args) -> tuple[str, int] | None:
    """Return "send" or "receive" and the bytes of a message from one rank to another; None where `func` is neither."""
    kind = {"send": "send", "recv_": "receive", "recv_any_source_": "receive"}.get(func._overloadpacket.__name__)
    return (kind, _bytes(args[0])) if kind and func.namespace == "c10d" else None


def group_of(args: Args) -> dist.ProcessGroup:
    """Return the group in which an operator of the namespaces above works."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return dist.ProcessGroup.unbox(arg)
    name = next(arg for arg in reversed(args) if isinstance(arg, str))
    return TORCH._C._distributed_c10d._resolve_process_group(name)


def _bytes(tensors: Any) -> int:
    leaves = tree_leaves(tensors)
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))
