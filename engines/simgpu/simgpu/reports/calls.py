"""Call of a model: how it ran, whether a backward pass came through its result, and tensors as they were then."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

LOOPED = 4  # calls of a model for one backward pass: with more, a loop over time or an environment sets the batch
_GONE = nn.Module()


class Mark:
    """Entry in the metadata of a graph's node, which is gone when the graph is."""


@dataclass(frozen=True)
class Then:
    """A tensor as it was, which nobody here keeps alive."""

    tensor: Callable[[], torch.Tensor | None]
    version: int

    @classmethod
    def of(cls, tensor: torch.Tensor | None) -> "Then":
        return cls(lambda: None, 0) if tensor is None else cls(TensorWeakRef(tensor), version(tensor))

    def now(self) -> torch.Tensor | None:
        """Return the tensor, None where it is gone or was changed."""
        tensor = self.tensor()
        return tensor if tensor is not None and version(tensor) == self.version else None

    def is_still(self, tensor: torch.Tensor | None) -> bool:
        """Return whether this is the tensor, and it was not changed."""
        return tensor is not None and self.now() is tensor


@dataclass
class Pass:
    """A call of a model from outside: its line, how it ran, and whether a backward pass came through its result."""

    of: "weakref.ref[nn.Module]"  # the model, which goes when the program lets it go, but for
    kept: nn.Module | None  # a trained one, that is judged yet where the program has ended
    lines: list[str]  # of the program that were running, the innermost first
    training: bool  # the mode of the model
    random: bool | None  # whether layers that tell the modes apart train; None: there are none, or its use is not seen
    recorded: bool  # with gradients
    samples: int
    batch: int  # the samples, but 0 for what may be one picture that is trained
    given: list[Then]  # its inputs and a parameter
    early: bool  # before a step has trained the model: perhaps a trial of shapes
    alone: torch.Size | None  # the shape of its input: one sample, which no other pass and no value read has made
    fed: bool  # whether a backward pass goes on through its input
    double: bool  # whether inputs or parameters are float64, but for numbers such as a time
    graph: "weakref.ref[Mark] | None" = None  # alive as long as its graph is
    cut: str = ""  # the line that has cut its result off from its graph
    before: "Pass | None" = None  # one that had the same tensors
    used: bool = False
    inside: bool = False  # whether it came between another call and the backward pass through that
    filled: bool = False  # whether that backward pass has left gradients in parameters
    cleared: bool = False  # whether these were cleared before an optimizer's step
    trains: bool = False  # whether a step, of an optimizer or by hand, has used them
    stepped: bool = False  # whether such a step was one of its own model, however it changes weights
    judged: int = 0  # how often it was looked at

    @property
    def model(self) -> nn.Module:
        """The model, an empty one where it is gone."""
        model = self.of()
        return _GONE if model is None else model

    @property
    def line(self) -> str:
        """The program's line that called the model."""
        return self.lines[0] if self.lines else ""

    @property
    def may_be_used(self) -> bool:
        """Whether a later backward pass may come through its result, as that of a generator after its critic's step."""
        return not self.used and self.judged < 2 and self.graph is not None and self.graph() is not None

    def had_the_tensors_of(self, other: "Pass") -> bool:
        """Return whether the same model has just had the same tensors in another call, unchanged since this one."""
        if self.model is not other.model or self.random is not other.random:
            return False
        pairs = zip(self.given, other.given, strict=False)
        return len(self.given) == len(other.given) > 1 and all(one.is_still(new.tensor()) for one, new in pairs)


def version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place; 0 where PyTorch does not count that."""
    return 0 if tensor.is_inference() else tensor._version
