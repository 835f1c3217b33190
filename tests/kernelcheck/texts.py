"""Kernels as text, and whether a compiler takes them: ours, Triton's own, NVRTC and nvcc.

`python -m tests.kernelcheck.texts [FOLDER]` compares: Triton and NVRTC are looked for in the environment and in FOLDER,
into which pip installed them, nvcc on the path. It prints a line for each text that a compiler judges in another way
than it is stored, and ends with status 1 if there is one.
"""

from __future__ import annotations

import inspect
import linecache
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).with_name("compiled_texts")
_POINTERS, _CONSTANTS = ("x", "y", "z", "out", "a", "b"), {"BLOCK": 64, "TILE": 16}
_TORCH = {
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64, "i8": torch.int8,
    "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "i1": torch.bool,
}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A text, whether compilers accept it, and the types of its kernel's parameters that are not the usual ones."""

    name: str
    language: str
    text: str
    accepted: bool
    types: dict[str, str | int] = field(default_factory=dict)
    refused_by: str = ""  # the one compiler that refuses what the other takes

    def kernel(self, triton, tl):
        """Return the kernel of a text in Triton's language."""
        file = f"{self.name.replace(' ', '_')}.py"
        linecache.cache[file] = len(self.text), None, self.text.splitlines(keepends=True), file
        space = {"triton": triton, "tl": tl, "torch": torch, "math": math, "np": np, "__name__": "texts"}
        exec(compile(self.text, file, "exec"), space)
        return space["kernel"]

    def parameters(self, function) -> dict[str, str | int]:
        """Return for each parameter the name of its type, or its value where it is a constant."""
        found = {}
        for name, one in inspect.signature(function).parameters.items():
            usual = "*fp32" if name in _POINTERS else "i32"
            if "constexpr" in str(one.annotation):
                usual = _CONSTANTS.get(name, 16)
            found[name] = self.types.get(name, usual)
        return found


def texts() -> list[Text]:
    """Return all stored texts."""
    found = []
    for file in sorted(FOLDER.glob("*.toml")):
        rows = tomllib.loads(file.read_text(encoding="utf-8"))["text"]
        found += [Text(language=file.stem.split("_")[1], **row) for row in rows]
    return found


def ours(text: Text) -> str:
    """Return what `kernelcheck` has against a text, "" if nothing."""
    import kernelcheck
    from kernelcheck.triton_compiler import compiled
    from kernelcheck.triton_language import _as_arguments
    from kernelcheck.triton_memory import Memory

    try:
        if text.language == "cuda":
            kernelcheck.compile_cuda(text.text, "kernel")
            return ""
        kernel = text.kernel(*kernelcheck.triton(interpreter=True))
        named = {name: _argument(kind) for name, kind in text.parameters(kernel.fn).items()}
        compiled(kernel, _as_arguments(kernel, named, Memory(copy=False)), (4, 1, 1))
    except (kernelcheck.KernelFault, kernelcheck.CompileError) as error:
        return str(error)
    return ""


def _argument(kind: str | int) -> object:
    if not isinstance(kind, str):
        return kind
    if kind.startswith("*"):
        return torch.zeros(64, dtype=_TORCH[kind[1:]])
    return 0.5 if kind.startswith("fp") else 1000
