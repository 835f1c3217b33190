"""Which operation between ranks is this, and how many bytes does this rank put into it?

`torch.distributed` sends every operation through PyTorch's dispatcher, those that `DistributedDataParallel` starts in
the backward pass included, so that a `TorchDispatchMode` sees them as operators of the namespaces below.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")

# Names of operators without underscores at the ends and forms such as `_base`: name in torch.distributed, and which
# argument holds this rank's own part. Only the operators of c10d write into outputs that they are given first.
_COLLECTIVES = {
    "allreduce": ("all_reduce", 0), "broadcast": ("broadcast", 0), "reduce": ("reduce", 0), "gather": ("gather", 1),
    "allgather": ("all_gather", 1), "scatter": ("scatter", 0), "reduce_scatter": ("reduce_scatter", 1),
    "alltoall": ("all_to_all", 1), "barrier": ("barrier", None), "monitored_barrier": ("barrier", None),
}  # fmt: skip
_FORMS = re.compile(r"(_base|_coalesced|_into_tensor|_tensor|_single|_out)+$")


@dataclass(eq=False)
class Communication:
    """What this rank told others: the part of `counting.Counts` that is about several ranks.

    - `messages`, `message_bytes`: sends to one other rank; `receives`: receives from one;
    - `messages_to`: messages to each other rank, by its number in the group;
    - `collectives`: calls of each operation of all ranks, by its name in torch.distributed, those of
      DistributedDataParallel included; forms such as `all_gather_into_tensor` count as `all_gather`;
    - `collective_bytes`: the bytes of this rank's own part in them: what it gives, or gets from a scatter.
    """

    messages_to: Counter[int] = field(default_factory=Counter)
    message_bytes: int = 0
    receives: int = 0
    collectives: Counter[str] = field(default_factory=Counter)
    collective_bytes: Counter[str] = field(default_factory=Counter)

    messages = property(lambda self: self.messages_to.total(), doc="Sends to one other rank.")

    def communicated(self, func: Any, args: tuple) -> None:
        """Note a call of an operator of the namespaces above."""
        single, joint = _message(func, args), _collective(func, args)
        if single and single[0] == "send":
            self.messages_to[args[2]] += 1
            self.message_bytes += single[1]
        elif single:
            self.receives += 1
        elif joint:
            self.collectives[joint[0]] += 1
            self.collective_bytes[joint[0]] += joint[1]

    def communication_rows(self) -> list[tuple[str, str]]:
        """Return names and values to show; none where nothing was said."""
        rows = [("messages", f"{self.messages:,} ({self.message_bytes:,} bytes)")] if self.messages else []
        named = sorted(self.collectives.items())
        return rows + [(name, f"{calls:,} ({self.collective_bytes[name]:,} bytes)") for name, calls in named]


def _collective(func: Any, args: tuple) -> tuple[str, int] | None:
    """Return the name of a collective and the bytes of this rank's own part; None where `func` is none."""
    name = _FORMS.sub("", func._overloadpacket.__name__.strip("_"))
    functional = func.namespace != "c10d"
    found = _COLLECTIVES.get(re.sub("^all_", "all", name).replace("allto_", "allto") if functional else name)
    if found is None:
        return None
    place = 0 if functional and found[1] is not None else found[1]
    return found[0], 0 if place is None else _bytes(args[place])


def _message(func: Any, args: tuple) -> tuple[str, int] | None:
    """Return "send" or "receive" and the bytes of a message from one rank to another; None where `func` is neither."""
    kind = {"send": "send", "recv_": "receive", "recv_any_source_": "receive"}.get(func._overloadpacket.__name__)
    return (kind, _bytes(args[0])) if kind and func.namespace == "c10d" else None


def _bytes(tensors: Any) -> int:
    leaves = tree_leaves(tensors)
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))
