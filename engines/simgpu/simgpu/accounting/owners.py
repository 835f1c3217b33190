"""Memory in training by its five owners, as numbers, a table and a bar."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

OWNERS = ("parameters", "gradients", "optimizer", "activations", "temporaries")
_NAMES = {"optimizer": "optimizer state"}


@dataclass(frozen=True)
class Parts:
    """Bytes by owner at one moment.

    - parameters: those of the modules, and their buffers;
    - gradients: what `.grad` of the parameters refers to;
    - optimizer: what the optimizer keeps from step to step;
    - activations: the batch, and all that the forward pass made (also when it is recomputed in the backward pass);
    - temporaries: what the backward pass and the optimizer's step made besides.
    """

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    activations_bytes: int = 0
    temporaries_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return sum(self.by_owner().values())

    def by_owner(self) -> dict[str, int]:
        """Return the bytes by owner's name, in fixed order."""
        return {owner: getattr(self, f"{owner}_bytes") for owner in OWNERS}

    @classmethod
    def of(cls, by_owner: Mapping[str, int]) -> "Parts":
        return cls(*(by_owner.get(owner, 0) for owner in OWNERS))


class Moment(NamedTuple):
    """The state after one operator: its name, what the program was doing, and the bytes alive."""

    operator: str
    phase: str
    bytes: int


def by_owner(*columns: Parts) -> list[tuple[str, *tuple[int, ...]]]:
    """Return rows of an owner's name and its bytes in each of `columns`."""
    return [(_NAMES.get(owner, owner), *(parts.by_owner()[owner] for parts in columns)) for owner in OWNERS]
