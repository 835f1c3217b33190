"""What do the tests of the simulated GPU share? A fresh one for each test, and a look at wrapper and values."""

import pytest
import torch

import simgpu
from simgpu import control

__all__ = ["_fresh", "consistent", "forget", "on_sim"]


def forget():
    """Count 0 bytes: what other tests of this process left alive, or to the garbage collector, is counted no more."""
    simgpu.reset()
    memory = control.world().memory
    memory.bury()
    memory.live.clear()  # the references that would have said when these storages die
    for gpu in memory.gpus:
        gpu.allocated_bytes = gpu.peak_bytes = gpu.storages = 0


@pytest.fixture(autouse=True)
def _fresh():
    simgpu.enable()
    forget()
    yield
    torch.set_default_device(None)
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
