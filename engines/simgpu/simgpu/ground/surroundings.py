"""Surroundings of an operator: in a model, where a host takes several times as long, or by itself."""

import sys
from types import FrameType

from torch import nn

_CALL = nn.Module._call_impl.__code__
_ALONE = ("", "forward", "gradients")


def in_module() -> bool:
    """Return whether a call of an `nn.Module` is running in this thread, as far down as the program's own start."""
    try:
        frame: FrameType | None = sys._getframe(5)  # those that ask are no module
    except ValueError:
        return False
    while frame is not None:
        code = frame.f_code
        if code is _CALL:  # a set would ask for the hash of the code, which takes a while
            return True
        if code.co_name == "<module>":
            return False
        frame = frame.f_back
    return False


class Surroundings:
    """Follows the operators of a program and tells which of them are bare.

    An operator is bare in a forward pass outside any call of an `nn.Module`, unless autograd records it behind what a
    module computed, such as a loss; in a backward pass where no module recorded a part of its graph.
    """

    def __init__(self) -> None:
        self._of_model = False  # whether a module has recorded operators since the last backward pass
        self._passed = False  # whether a backward pass has run since

    def bare(self, phase: str, recorded: bool) -> bool:
        """Return whether an operator is bare that runs now, in a phase of a training step; `recorded` by autograd."""
        if phase == "backward":
            self._passed = True
            return not self._of_model
        return phase in _ALONE and self.bare_forward(recorded)

    def bare_forward(self, recorded: bool) -> bool:
        """Return the same in a forward pass."""
        if not recorded:
            return not in_module()
        if self._passed:
            self._of_model = self._passed = False
        self._of_model = self._of_model or in_module()
        return not self._of_model
