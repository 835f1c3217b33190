"""What do the tests of the simulated GPU share? A fresh one for each test, and a look at wrapper and values."""

import contextlib
import gc

import pytest
import torch

import simgpu
from simgpu import control

__all__ = ["_fresh", "consistent", "nothing_alive", "on_sim"]


@pytest.fixture(autouse=True)
def _fresh():
    simgpu.enable()
    simgpu.reset()
    yield
    torch.set_default_device(None)
    simgpu.reset()


@contextlib.contextmanager
def nothing_alive():
    """Begin with 0 bytes: what other tests of this process left alive is not counted meanwhile."""
    simgpu.enable()
    gc.collect()
    simgpu.reset()
    alive = control.world().memory
    alive.bury()
    live, alive.live = alive.live, {}
    before = [gpu.allocated_bytes for gpu in alive.gpus]
    for gpu in alive.gpus:
        gpu.allocated_bytes = gpu.peak_bytes = 0
    yield
    gc.collect()
    simgpu.configure(allocator="exact")
    alive.live.update(live)
    for gpu, nbytes in zip(alive.gpus, before, strict=True):
        gpu.allocated_bytes += nbytes
    simgpu.reset()


def on_sim(*shape, **options):
    return torch.randn(*shape, device="sim", **options)


def consistent(tensor):
    """Say that wrapper and values agree: what C++ believes is what the CPU computed."""
    inner = simgpu.values_of(tensor)
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (inner.shape, inner.stride(), inner.dtype)
    assert tensor.storage_offset() == inner.storage_offset()
    # not a number equals itself here: memory that nobody wrote may hold it
    torch.testing.assert_close(tensor.detach().cpu(), inner.detach(), rtol=0, atol=0, equal_nan=True)
    return tensor
