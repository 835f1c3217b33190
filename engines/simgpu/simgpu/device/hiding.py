"""Real accelerators, hidden from a process that computes on simulated GPUs alone.

Environment variables hide those of NVIDIA, AMD and Intel, read when the driver begins; none hides Apple's.
"""

import contextlib
import functools
import os
from collections.abc import Generator
from typing import Any

import torch

from simgpu.device import state

# HIP takes an empty variable as none (`HIP_VISIBLE_DEVICES[0] != '\0'` in clr's rocdevice.cpp): -1 names no GPU.
_VARIABLES = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "ZE_AFFINITY_MASK": "none"}
HIDDEN = {**_VARIABLES, "SIMGPU_ONLY": "1", "SIMGPU_CUDA": ""}  # of child processes without CUDA's face
_NAMES = {"cuda": "a GPU of NVIDIA or AMD", "xpu": "a GPU of Intel", "mps": "the GPU of this Mac"}


def present() -> list[str]:
    """Return the kinds of real accelerators that PyTorch finds in this process: of "cuda", "xpu" and "mps"."""
    return [kind for kind in _NAMES if getattr(torch, kind).is_available()]


def in_use() -> list[str]:
    """Return the kinds that this process has begun to use, which nothing can hide any more."""
    return [kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_initialized()]


def hide_accelerators(*, children: bool = True) -> str:
    """Hide real GPUs from this process, and return a sentence that names them, "" without one.

    One that is in use already stays. Programs that it starts have no real GPU either, the simulated one and not CUDA's
    face; without `children` the environment stays as it was, for programs that read it.
    """
    said = "" if state.is_on() or in_use() else _hide()
    if children:
        os.environ.update(HIDDEN)
    return said


def _hide() -> str:
    found = [_NAMES[kind] for kind in ("xpu", "mps") if getattr(torch, kind).is_available()]
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        begin, torch._C._cuda_getDeviceCount = torch._C._cuda_getDeviceCount, lambda: 0
        found[:0] = [_NAMES["cuda"]] if torch.cuda.device_count() else []  # as NVIDIA's and AMD's tools count
        with _variables():
            begin()
        torch.cuda._cached_device_count = 0
    modules: list[Any] = [torch.xpu, torch.mps, torch.backends.mps]
    for module in modules:
        module.is_available = functools.cache(lambda: False)  # PyTorch's compiler asks for its __wrapped__
    return f"{' and '.join(found)} is hidden from this process, which sees simulated GPUs alone" if found else ""


@contextlib.contextmanager
def _variables() -> Generator[None]:
    """Inside, the environment hides GPUs: a driver reads it once, where it begins."""
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(_VARIABLES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
