"""Random generators of a simulated GPU: the CPU's, with a device, a state and an offset of their own.

The numbers are those of the CPU's generator. A state of CUDA is a seed and an offset, 16 bytes (`get_state` in
CUDAGeneratorImpl.cpp); here these stand before the state of the CPU's generator. So a state of the CPU does not fit a
generator of a GPU, nor the other way round, and one that was saved on a GPU sets the seed.

The offset begins with 0 where the seed is set, and each kernel that draws moves it as far as one that draws element by
element (`calc_execution_policy` in DistributionTemplates.h). Where the offset is set to one that was asked for since
the seed was set, the numbers from there come again, as on CUDA. From any other, numbers come that depend on the seed
and the offset alone, and that no draw reaches.
"""

import copy
import hashlib
import sys
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from simgpu.device import state
from simgpu.device.state import Device, device_of
from simgpu.ground import device_kind
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH

_Plain = TORCH._C.Generator
_ours: "dict[int, weakref.ref[SimGenerator]]" = {}
_defaults: "weakref.WeakValueDictionary[int, DefaultGenerator]" = weakref.WeakValueDictionary()
_SEED_BYTES, _HEAD_BYTES = 8, 16  # of CUDA's states
_STEP, _BLOCK = 4, 256  # of an offset; threads
_MOST_NOTED = 64
_OWN = -1  # in place of an offset: numbers that are not the CPU's


class SimGenerator(_Plain):
    """A generator that says it is on a simulated GPU; its numbers are those of the CPU's generator."""

    def __new__(cls, device: Device = "sim") -> "SimGenerator":
        self = super().__new__(cls, "cpu")
        self._index, self._shares = device_of(device), None
        self._begin(0)
        # by its address: an operator is given another Python object for the same generator
        _ours[self._cdata] = weakref.ref(self, partial(_ours.pop, self._cdata))
        return self

    device = property(lambda self: state.world.devices[self._index])
    owner: Any = property(lambda self: self._shares or self, doc="Generator with the state of this one.")
    _source: Any = property(lambda self: self.owner)  # what draws

    def clone_state(self) -> "SimGenerator":
        _check_not_captured("call CUDAGeneratorImpl::clone_impl")
        return copy.deepcopy(self)

    def graphsafe_get_state(self) -> "SimGenerator":
        handle = SimGenerator(self.device)
        handle._shares = self.owner
        return handle

    def graphsafe_set_state(self, state: "SimGenerator") -> "SimGenerator":
        self._shares = None if state.owner is self else state.owner
        return self

    def _begin(self, offset: int) -> None:
        self.owner.offset = offset
        self.owner.noted = dict[int, torch.Tensor]()  # states of the CPU's generator by offset

    def get_state(self) -> torch.Tensor:
        head = self.initial_seed().to_bytes(_SEED_BYTES, sys.byteorder)
        head += self.owner.offset.to_bytes(_HEAD_BYTES - _SEED_BYTES, sys.byteorder)
        return torch.cat([torch.frombuffer(bytearray(head), dtype=torch.uint8), _Plain.get_state(self._source)])

    def set_state(self, new_state: torch.Tensor) -> "SimGenerator":
        usual = isinstance(new_state, torch.Tensor) and new_state.device.type == "cpu"
        if not usual or new_state.dtype is not torch.uint8:
            _Plain.set_state(self._source, new_state)  # says what it must be
        size, whole = new_state.numel(), _HEAD_BYTES + torch.default_generator.get_state().numel()
        if size not in (_SEED_BYTES, _HEAD_BYTES, whole):  # the first two are of a real GPU
            raise RuntimeError("RNG state is wrong size")
        head = bytes(new_state[:_HEAD_BYTES].tolist())
        offset = int.from_bytes(head[_SEED_BYTES:], sys.byteorder)
        self.manual_seed(int.from_bytes(head[:_SEED_BYTES], sys.byteorder))
        if size == whole:
            _Plain.set_state(self._source, new_state[_HEAD_BYTES:].clone())
            self._begin(offset)
        else:
            self._go_to(offset)
        return self

    def manual_seed(self, seed: int) -> "SimGenerator":
        if state.world.clock.capture is None or device_kind.kind != "cuda":
            _Plain.manual_seed(self._source, seed)
            if device_kind.current.has_own_numbers:
                _Plain.set_state(self._source, _state_at(self.initial_seed(), _OWN))
            self._begin(0)
        elif seed != self.initial_seed():
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same "
                "as the original seed."
            )
        return self

    def seed(self) -> int:
        _check_not_captured("call CUDAGeneratorImpl::seed")
        self.manual_seed(seed := _Plain.seed(_Plain("cpu")))
        return seed

    def initial_seed(self) -> int:
        return _Plain.initial_seed(self._source)

    def get_offset(self) -> int:
        _check_not_captured("call CUDAGeneratorImpl::get_offset")
        noted, offset = self.owner.noted, self.owner.offset
        noted[offset] = _Plain.get_state(self._source)
        if len(noted) > _MOST_NOTED:
            del noted[next(iter(noted))]
        return offset

    def set_offset(self, offset: int) -> None:
        _check_not_captured("call CUDAGeneratorImpl::set_offset")
        self._go_to(offset)

    def _go_to(self, offset: int) -> None:
        if offset % _STEP and device_kind.kind != "mps":
            raise RuntimeError("offset must be a multiple of 4")
        if offset in self.owner.noted:
            _Plain.set_state(self._source, self.owner.noted[offset])
        elif offset != self.owner.offset:
            _Plain.set_state(self._source, _state_at(self.initial_seed(), offset))
        self.owner.offset = offset

    def __reduce__(self) -> tuple[Any, ...]:
        return SimGenerator, (self.device,), self.get_state()

    __setstate__ = set_state


class DefaultGenerator(SimGenerator):
    """Default generator of a simulated GPU: the CPU's."""

    _source: Any = property(
        lambda self: self.owner if self._shares or device_kind.current.has_own_numbers else torch.default_generator
    )

    def __new__(cls, device: Device = "sim") -> "DefaultGenerator":
        self = super().__new__(cls, device)
        _defaults[self._index] = self
        return self


def _state_at(seed: int, offset: int) -> torch.Tensor:
    """Return a state of the CPU's generator that has a seed, and begins with it or, further on, with both numbers."""
    begins = seed
    if offset:
        digest = hashlib.sha256(f"{seed} {offset}".encode()).digest()
        begins = int.from_bytes(digest[:_SEED_BYTES], "little")
    state_there = _Plain("cpu").manual_seed(begins).get_state()
    told = bytearray(seed.to_bytes(_SEED_BYTES, sys.byteorder))
    state_there[:_SEED_BYTES] = torch.frombuffer(told, dtype=torch.uint8)  # `the_initial_seed` in CPUGeneratorImpl.cpp
    return state_there


@contextmanager
def drawing(generator: Any, index: int) -> Generator[None]:
    """Inside, operators of the CPU draw from the state of a generator, or of the GPU's own, if that is another's."""
    ours = of(generator, index)
    drawn_from: Any = torch.default_generator if generator is None else generator
    source: Any = drawn_from if ours is None else ours._source
    if source._cdata == drawn_from._cdata:
        yield
        return
    before = _Plain.get_state(drawn_from)
    _Plain.set_state(drawn_from, _Plain.get_state(source))
    try:
        yield
    finally:
        _Plain.set_state(source, _Plain.get_state(drawn_from))
        _Plain.set_state(drawn_from, before)


def of(generator: Any, index: int) -> Any:
    """Return the generator that an operator is given on GPU `index`, as it was made here; None for one of the CPU."""
    return _defaults.get(index) if generator is None else _ours.get(generator._cdata, lambda: None)()


def advance(generator: Any, index: int, drawn: Any) -> None:
    """Move the offset of a generator, or of the GPU's own where it is None, by what a kernel takes that drew this."""
    ours = of(generator, index)
    if ours is None or not isinstance(drawn, torch.Tensor) or drawn.numel() == 0:
        return
    gpu, blocks = state.world.clock.machine.gpu, -(-drawn.numel() // _BLOCK)
    if gpu.multiprocessors is not None and gpu.generation.threads is not None:  # both are stated: so many fit
        blocks = min(blocks, gpu.multiprocessors * (gpu.generation.threads // _BLOCK))
    at_once = _BLOCK * blocks * (2 if drawn.dtype is torch.float64 else 4)
    ours.owner.offset += _STEP * -(-drawn.numel() // at_once)


class Kind(type):
    """Of `torch.Generator`: lets device="sim" work; for other devices, and for isinstance, all stays as it was."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Plain)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _Plain)

    def __call__(cls, device: torch.device | str | None = "cpu") -> torch.Generator:
        on_sim = device is not None and device_kind.is_ours(torch.device(device))
        if on_sim:
            _check_not_captured("construct a new CUDAGeneratorImpl")
        return SimGenerator(device) if on_sim else _Plain(device or "cpu")


_Generator = Kind("Generator", (), {"__doc__": _Plain.__doc__, "__module__": "torch"})


def replace(put: Replacements) -> None:
    """Give `torch.Generator` generators of simulated GPUs, too."""
    put.put(torch, Generator=_Generator)


def _check_not_captured(attempt: str) -> None:
    """Raise in a capture as `assertNotCapturing` of CUDAGraphsUtils.cuh does."""
    if state.world.clock.capture is not None and device_kind.kind == "cuda":
        raise RuntimeError(
            f"Cannot {attempt} during CUDA graph capture. If you need this call to be captured, please file an issue. "
            "Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
        )


def check_generator(generator: Any) -> None:
    """Raise as CUDA does where an operation on the GPU is given a generator of the CPU, or one that a graph which is
    being captured does not know (CUDAGeneratorImpl.cpp)."""
    if generator is None:
        return
    capture, known = state.world.clock.capture, of(generator, 0)
    if capture is not None and known is not None and not isinstance(known.owner, DefaultGenerator):
        if known.owner._cdata not in capture.generators:
            raise RuntimeError("Attempt to increase offset for a CUDA generator not in capture mode.")
    elif known is None:
        found = generator.device.type
        raise RuntimeError(f"Expected a '{device_kind.kind}' device type for generator but found '{found}'")
