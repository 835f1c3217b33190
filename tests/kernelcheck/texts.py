"""Kernels as text, and whether a compiler takes them: ours, Triton's own, NVRTC and nvcc.

`python -m tests.kernelcheck.texts [FOLDER]` compares: Triton and NVRTC are looked for in the environment and in FOLDER,
into which pip installed them, nvcc on the path. It prints a line for each text that a compiler judges in another way
than it is stored, and ends with status 1 if there is one.
"""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import linecache
import math
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
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
    from kernelcheck.triton.compiler import compiled
    from kernelcheck.triton.language import _as_arguments
    from kernelcheck.triton.memory import Memory

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


# ---- what the compilers of NVIDIA and of Triton say, where pip installed them


def by_triton(text: Text) -> str:
    """Return what Triton's compiler has against a text, "" if nothing. It needs no GPU."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    try:
        kernel = text.kernel(triton, tl)
        found = text.parameters(kernel.fn)
        constants = {(n,): kind for n, kind in enumerate(found.values()) if not isinstance(kind, str)}
        types = {name: kind if isinstance(kind, str) else "constexpr" for name, kind in found.items()}
        triton.compile(ASTSource(fn=kernel, signature=types, constexprs=constants), target=GPUTarget("cuda", 80, 32))
    except Exception as error:  # of many kinds: what it says is compared with nothing
        return f"{type(error).__name__}: {error}"
    return ""


def by_nvrtc(text: Text) -> str:
    """Return what NVRTC has against a text as `kernelcheck` gives it to NVRTC, "" if nothing. It needs no GPU."""
    from kernelcheck.cuda.gpu import HERE, for_nvrtc

    found = [folder for path in sys.path for folder in Path(path).glob("nvidia/*") if folder.is_dir()]
    library = ctypes.CDLL(str(next(file for folder in found for file in folder.glob("lib/libnvrtc.so.*"))))
    folders = [*(folder / "include" for folder in found), HERE]
    options = [b"--gpu-architecture=compute_80", *(f"-I{folder}".encode() for folder in folders)]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), for_nvrtc(text.text).encode(), b"kernel.cu", 0, None, None)
    failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode() or "failed" if failed else ""


def by_nvcc(text: Text) -> str:
    """Return what nvcc has against a text, with the flags of PyTorch's `load_inline`, "" if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cu")
        file.write_text(text.text, encoding="utf-8")
        command = ["nvcc", "-ptx", "-arch=sm_80", "--expt-relaxed-constexpr", "-o", Path(folder, "kernel.ptx"), file]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr or "failed" if done.returncode else ""


def compilers() -> dict[str, tuple[str, Callable[[Text], str]]]:
    """Return the compilers that are here: name -> (language, what it has against a text)."""
    found: dict[str, tuple[str, Callable[[Text], str]]] = {}
    if importlib.util.find_spec("triton"):
        found["Triton"] = "triton", by_triton
    if any(list(Path(path).glob("nvidia/*/lib/libnvrtc.so.*")) for path in sys.path):
        found["NVRTC"] = "cuda", by_nvrtc
    if shutil.which("nvcc"):
        found["nvcc"] = "cuda", by_nvcc
    return found


def compare() -> list[str]:
    """Return a line for each text that a compiler judges in another way than it is stored."""
    different = []
    for compiler, (language, judge) in compilers().items():
        for text in texts():
            accepts = text.accepted or text.refused_by not in ("", compiler)
            if text.language == language and bool(said := judge(text)) == accepts:
                different.append(f"{compiler}, {text.name}: {said or 'accepted'}")
    return different


if __name__ == "__main__":
    sys.path += sys.argv[1:]
    print(*(found := compare()), f"{', '.join(compilers()) or 'no compiler'}: {len(texts())} texts", sep="\n")
    sys.exit(bool(found) or not compilers())
