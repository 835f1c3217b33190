"""What is a random number generator of the simulated GPU? The CPU's, held to CUDA's rule on devices."""

from __future__ import annotations

import weakref

import torch

from course_utils.simulator import state
from course_utils.simulator.state import device_of

__all__ = ["SimGenerator", "check_generator", "register_generator"]

_Plain = torch._C.Generator
_ours: weakref.WeakValueDictionary[int, torch._C.Generator] = weakref.WeakValueDictionary()


class SimGenerator(_Plain):
    """A generator that says it is on a simulated GPU; its numbers are those of the CPU's generator."""

    def __new__(cls, device="sim"):
        self = super().__new__(cls, "cpu")
        self._index = device_of(device)
        _ours[self._cdata] = self  # an operator is given another Python object for the same generator
        return self

    device = property(lambda self: state.sim_devices[self._index])

    def clone_state(self):
        new = type(self)(self.device)
        new.set_state(self.get_state())
        return new

    def __deepcopy__(self, memo):
        return self.clone_state()

    def __reduce__(self):
        return _rebuild, (self._index, self.get_state())


def _rebuild(index: int, drawn: torch.Tensor) -> SimGenerator:
    new = SimGenerator(torch.device("sim", index))
    new.set_state(drawn)
    return new


class _Kind(type):
    def __instancecheck__(cls, instance) -> bool:
        return isinstance(instance, _Plain)

    def __subclasscheck__(cls, other) -> bool:
        return issubclass(other, _Plain)

    def __call__(cls, device="cpu"):
        on_sim = torch.device(device).type == "sim" if device is not None else False
        return SimGenerator(device) if on_sim else _Plain() if device is None else _Plain(device)


def register_generator() -> None:
    """Let `torch.Generator(device="sim")` work; for other devices, and for isinstance, all stays as it was."""
    names = {"__doc__": _Plain.__doc__, "__module__": "torch"}
    torch.Generator = _Kind("Generator", (), names)


def check_generator(generator) -> None:
    """Raise as CUDA does where an operation on the GPU is given a generator of the CPU."""
    if generator is not None and generator._cdata not in _ours:
        raise RuntimeError(
            f"Expected a 'sim' device type for generator but found '{generator.device.type}': use "
            "torch.Generator(device='sim')"
        )
