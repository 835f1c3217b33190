"""Counter of the messages and collectives that this rank sends."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from simgpu import collectives


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
        single, joint = collectives.message(func, args), collectives.collective(func, args)
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
