"""Fixtures of all tests of the simulated GPU: a fresh one for each test, and skips where there is none."""

from contextlib import nullcontext

import pytest
import torch

import simgpu
from tests.simgpu.simulated import forget

# Tests that need no simulated GPU, and those that start their own.
_ANYWHERE = {"test_cluster", "test_custom_operators", "test_gpus", "test_places", "test_prices", "test_readme"}
_OWN = {
    "test_cuda_programs", "test_cuda_pytest", "test_cuda_ranks", "test_machines", "test_operator_database",
    "test_switched_off",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _available(request):
    """Skip the test where PyTorch gives no simulated GPU."""
    if request.path.stem not in _ANYWHERE and (why := simgpu.unavailable()):
        pytest.skip(why)


@pytest.fixture(autouse=True)
def _fresh(request, _available):
    """Give the test an empty simulated GPU."""
    if request.path.stem in _ANYWHERE | _OWN:
        yield
        return
    simgpu.enable()
    forget()
    yield
    torch.set_default_device(None)
    simgpu.reset()


@pytest.fixture(autouse=True)
def _face(request, _fresh):
    """Put CUDA's face on, for tests of a file that says by FACE which."""
    given = getattr(request.module, "FACE", None)
    with nullcontext() if given is None else simgpu.cuda(**given):
        yield
