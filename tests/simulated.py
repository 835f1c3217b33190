"""What do the tests of the simulated GPU share? A fresh one for each test, and a look at wrapper and values."""

import pytest
import torch

from course_utils import simulator

__all__ = ["_fresh", "consistent", "on_sim"]


@pytest.fixture(autouse=True)
def _fresh():
    simulator.enable()
    simulator.reset()
    yield
    torch.set_default_device(None)
    simulator.reset()


def on_sim(*shape, **options):
    return torch.randn(*shape, device="sim", **options)


def consistent(tensor):
    """Say that wrapper and values agree: what C++ believes is what the CPU computed."""
    inner = tensor._inner
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (inner.shape, inner.stride(), inner.dtype)
    assert tensor.storage_offset() == inner.storage_offset()
    # not a number equals itself here: memory that nobody wrote may hold it
    torch.testing.assert_close(tensor.detach().cpu(), inner.detach(), rtol=0, atol=0, equal_nan=True)
    return tensor
