"""CUDA kernels on a real GPU: NVRTC and the driver, through PyTorch's own binding."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import struct
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelcheck.cuda.rules import C_HEADERS, OWN_HEADERS, header
from kernelcheck.cuda.text import CudaText

HERE = Path(__file__).parent
SHARED_LIMIT = 48 * 1024  # bytes of shared memory that a kernel gets without asking


def for_nvrtc(source: str) -> str:
    """Return a text for NVRTC, preceded by the host definitions that nvcc includes, without shifting its lines."""
    parts, end = [], 0
    for token in CudaText(source).tokens:
        name = header(token.text) if token.kind == "directive" else None
        if name in C_HEADERS | OWN_HEADERS:
            parts += [source[end : token.start], " " if name in C_HEADERS else f"#include <include/{name}>"]
            end = token.start + len(token.text)
    return (HERE / "nvrtc.h").read_text(encoding="utf-8") + "".join(parts) + source[end:]


def compiled(source: str, name: str) -> Any:
    """Return the kernel `name` for the current GPU, as `torch.cuda._compile_kernel` makes it."""
    with _toolkit():
        return torch.cuda._compile_kernel(for_nvrtc(source), name, cuda_include_dirs=[str(HERE)])


def run(kernel: Any, launch: dict[str, Any], values: Sequence[object], raw: Sequence[bytes], shared_mem: int) -> None:
    """Run a kernel that `compiled` made. PyTorch passes an int as 4 bytes and a float as 8, `raw` are the bytes due."""
    if shared_mem >= SHARED_LIMIT:
        kernel.set_shared_memory_config(shared_mem)
    passed = [
        value if isinstance(value, torch.Tensor) else _number(one) for value, one in zip(values, raw, strict=True)
    ]
    kernel(**launch, args=passed, shared_mem=shared_mem)


def _number(raw: bytes) -> float | int:
    return struct.unpack("<d" if len(raw) == 8 else "<i", raw.ljust(4, b"\0"))[0]


@contextlib.contextmanager
def _toolkit() -> Generator[None]:
    """Give PyTorch's binding the CUDA toolkit that it asks for, where pip's torch has brought the libraries alone.

    It asks for the folder of the headers, which most kernels do not need. Without CUDA_HOME that is the folder that pip
    made, or an empty one; and NVRTC is loaded from there where the system's linker does not know it.
    """
    from torch.utils import cpp_extension

    before = cpp_extension.CUDA_HOME
    with tempfile.TemporaryDirectory(prefix="no-toolkit-") as nothing:
        try:
            if before is None:
                _load_nvrtc()
                home = next((file.parents[1] for file in _of_pip("include/cuda_fp16.h")), nothing)
                cpp_extension.CUDA_HOME = str(home)
            yield
        finally:
            cpp_extension.CUDA_HOME = before


def _of_pip(pattern: str) -> Iterator[Path]:
    """Yield files of NVIDIA's packages that pip installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield from Path(folder).glob(f"*/{pattern}")


def _load_nvrtc() -> None:
    """Load the NVRTC that pip installed, so that PyTorch finds it by its name."""
    pattern = "bin/**/nvrtc64_*.dll" if sys.platform == "win32" else "lib/libnvrtc.so.*"
    for library in _of_pip(pattern):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(library))
