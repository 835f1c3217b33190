"""How do the generators of a simulated GPU differ from those of the CPU? By their device, and by their states.

The numbers are those of the CPU's generator. A state of CUDA is a seed and a position, 16 bytes (`get_state` in
CUDAGeneratorImpl.cpp); here these stand before the state of the CPU's generator. So a state of the CPU does not fit a
generator of a GPU, nor the other way round, and one that was saved on a GPU sets the seed.
"""

import copy
import sys
import weakref
from functools import partial
from typing import Any

import torch

from simgpu.device import state
from simgpu.device.state import Device, device_of
from simgpu.ground import device_kind
from simgpu.ground.torch_internals import TORCH

_Plain = TORCH._C.Generator
_ours: "dict[int, weakref.ref[SimGenerator]]" = {}
_SEED_BYTES, _HEAD_BYTES = 8, 16  # of CUDA's states


class SimGenerator(_Plain):
    """A generator that says it is on a simulated GPU; its numbers are those of the CPU's generator."""

    def __new__(cls, device: Device = "sim") -> "SimGenerator":
        self = super().__new__(cls, "cpu")
        self._index = device_of(device)
        # by its address: an operator is given another Python object for the same generator
        _ours[self._cdata] = weakref.ref(self, partial(_ours.pop, self._cdata))
        return self

    device = property(lambda self: state.world.devices[self._index])
    clone_state = copy.deepcopy

    def get_state(self) -> torch.Tensor:
        return _with_head(super().get_state(), self.initial_seed())

    def set_state(self, new_state: torch.Tensor) -> "SimGenerator":
        _set(super(), new_state)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SimGenerator, (self.device,), super().__reduce__()[2]


class DefaultGenerator(SimGenerator):
    """What draws on a simulated GPU where a program names no generator: that of the CPU."""

    def get_state(self) -> torch.Tensor:
        return _with_head(torch.default_generator.get_state(), self.initial_seed())

    def set_state(self, new_state: torch.Tensor) -> "DefaultGenerator":
        _set(torch.default_generator, new_state)
        return self

    def manual_seed(self, seed: int) -> "DefaultGenerator":
        torch.default_generator.manual_seed(seed)
        return self

    def seed(self) -> int:
        return torch.default_generator.seed()

    def initial_seed(self) -> int:
        return torch.default_generator.initial_seed()


def _with_head(plain: torch.Tensor, seed: int) -> torch.Tensor:
    head = seed.to_bytes(_SEED_BYTES, sys.byteorder) + bytes(_HEAD_BYTES - _SEED_BYTES)
    return torch.cat([torch.frombuffer(bytearray(head), dtype=torch.uint8), plain])


def _set(generator: Any, given: torch.Tensor) -> None:
    """Give the CPU's `generator` a state of a GPU's, or raise as CUDA does for one that is none."""
    usual = isinstance(given, torch.Tensor) and given.device.type == "cpu" and given.dtype is torch.uint8
    if not usual:
        generator.set_state(given)  # says what it must be
    elif given.numel() in (_SEED_BYTES, _HEAD_BYTES):  # of a real GPU
        generator.manual_seed(int.from_bytes(bytes(given[:_SEED_BYTES].tolist()), sys.byteorder))
    elif given.numel() == _HEAD_BYTES + torch.default_generator.get_state().numel():
        generator.set_state(given[_HEAD_BYTES:].clone())
    else:
        raise RuntimeError("RNG state is wrong size")


class Kind(type):
    """Of `torch.Generator`: lets device="sim" work; for other devices, and for isinstance, all stays as it was."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Plain)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _Plain)

    def __call__(cls, device: torch.device | str | None = "cpu") -> torch.Generator:
        on_sim = device is not None and device_kind.is_ours(torch.device(device))
        return SimGenerator(device) if on_sim else _Plain(device or "cpu")


def replace() -> None:
    """Let `torch.Generator` make generators of simulated GPUs, too."""
    torch.Generator = Kind("Generator", (), {"__doc__": _Plain.__doc__, "__module__": "torch"})


def check_generator(generator: Any) -> None:
    """Raise as CUDA does where an operation on the GPU is given a generator of the CPU."""
    if generator is not None and generator._cdata not in _ours:
        refused = f"Expected a '{device_kind.kind}' device type for generator but found '{generator.device.type}'"
        raise RuntimeError(f"{refused}: use torch.Generator(device='{device_kind.kind}')")
