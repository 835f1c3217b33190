"""How are the bytes of simulated tensors saved, loaded and copied, and those of CPU tensors pinned?"""

from __future__ import annotations

import weakref

import torch

from course_utils.simulator import state
from course_utils.simulator.state import device_of

__all__ = ["register_storages"]


def register_storages() -> None:
    """Teach torch.load and pickle the place of simulated tensors, and pinning to PyTorch without an accelerator."""
    torch.serialization.register_package(5, _location, _restore)
    torch.Tensor.pin_memory, torch.Tensor.is_pinned = _pin_memory, _is_pinned
    torch.UntypedStorage.__new__ = staticmethod(_new_storage)


# ---- saving and loading -----------------------------------------------------------------------------------------
class _SimStorage(torch.UntypedStorage):
    """Bytes read from a file that are to live on a simulated GPU; here they are the CPU's, and so are their copies."""

    sim_index = 0

    @property
    def device(self):
        return state.sim_devices[self.sim_index]

    def clone(self):
        return torch.UntypedStorage(self.nbytes()).copy_(self)


def _location(storage):
    ref = state.world.live.get(storage._cdata)
    return None if ref is None else f"sim:{ref.gpu.index}"


def _restore(storage, location):
    if location != "sim" and not location.startswith("sim:"):
        return None
    index = device_of(torch.device(location))
    moved = _SimStorage(storage.nbytes())
    moved.copy_(storage)
    moved.sim_index = index
    state.world.copy(index, "H2D", storage.nbytes(), pinned=False, blocking=True)
    return moved


_make_storage = torch.UntypedStorage.__new__


def _new_storage(cls, *args, **kwargs):
    """Make a storage; one of the device itself, which C++ would try to allocate, is refused."""
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == "sim":
        raise RuntimeError("a storage alone cannot be made on the simulated GPU: make a tensor there")
    return _make_storage(cls, *args, **kwargs)


# ---- pinning ----------------------------------------------------------------------------------------------------
_pinned: dict[int, weakref.ref] = {}


def _is_pinned(self, device=None) -> bool:
    return self.layout is torch.strided and self.untyped_storage()._cdata in _pinned


def _pin_memory(self, device=None):
    if self.device.type != "cpu":
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    if self.is_pinned():
        return self
    copy = self.detach().clone()
    storage = copy.untyped_storage()
    key = storage._cdata
    _pinned[key] = weakref.ref(storage, lambda _: _pinned.pop(key, None))
    return copy
