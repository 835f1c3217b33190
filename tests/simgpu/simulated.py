"""Helpers of the simulated GPU's tests: accounts of nothing, forked children, a look at wrapper and values."""

import copy
import io
import os
import pickle
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import simgpu
from simgpu.device import child_process, enabling, hiding
from tests import children

__all__ = ["CALLS", "consistent", "forget", "fork_children", "on_sim", "outcome", "read_calls", "read_programs"]

CALLS = Path(__file__).with_name("calls.toml")


def read_calls(section: str, names: dict[str, Any], arguments: str = "") -> dict[str, Any]:
    """Return the calls of a section of `calls.toml` by name: functions of `arguments`, whose code knows `names`.

    It knows the file's usual modules besides. Where a row is a list, its first item comes before them as it is.
    """

    def function(text: str) -> Callable[..., Any]:
        return eval(compile(f"lambda {arguments}: {text}", CALLS, "eval"), names)

    names |= {"torch": torch, "nn": nn, "F": nn.functional, "copy": copy, "io": io, "pickle": pickle}
    rows = tomllib.loads(CALLS.read_text(encoding="utf-8"))[section]
    made = {name: (row[0], *map(function, row[1:])) for name, row in rows.items() if isinstance(row, list)}
    return {name: made[name] if name in made else function(row) for name, row in rows.items()}


def read_programs(section: str) -> dict[str, Any]:
    """Return the texts of a section of `child_programs.toml` by name."""
    return tomllib.loads(CALLS.with_name("child_programs.toml").read_text(encoding="utf-8"))[section]


def outcome(call: Callable[[], Any]) -> str:
    """Return the error of a call, behind the name of its kind, or what it returns."""
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


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
