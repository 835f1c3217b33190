"""Helpers of the simulated GPU's tests: accounts of nothing, forked children, a look at wrapper and values."""

import os
from pathlib import Path

import torch

import simgpu
from simgpu.device import child_process, enabling, hiding
from tests import children

__all__ = ["consistent", "forget", "fork_children", "on_sim"]


def fork_children(monkeypatch):
    """Let `simgpu.run_in_child` fork its process from one that has torch, where a fresh Python is not what is tried."""

    def finished(file: Path, wait) -> int:
        done = children.run("-m", "simgpu.device.child_process", file, env={**os.environ, **hiding.HIDDEN})
        file.with_suffix(".out").write_text(done.stdout, encoding="utf-8")
        file.with_suffix(".err").write_text(done.stderr, encoding="utf-8")
        return done.returncode

    monkeypatch.setattr(child_process, "_finished", finished)


def forget():
    """Count 0 bytes: what other tests of this process left alive, or to the garbage collector, is counted no more."""
    simgpu.reset()
    memory = enabling.world().memory
    memory.bury()
    memory.live.clear()  # the references that would have said when these storages die
    for gpu in memory.gpus:
        gpu.allocated_bytes = gpu.peak_bytes = gpu.storages = 0


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
