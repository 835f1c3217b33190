"""Code that a C++ compiler accepts and a CUDA compiler refuses.

The rules are those of NVRTC 13, which `torch.cuda._compile_kernel` calls, and of nvcc 13 with the flags of
`torch.utils.cpp_extension.load_inline`. A text that one of the two refuses is refused, at the reader's line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from kernelcheck.cuda.text import PLAIN, CudaText, Function
from kernelcheck.faults import CompileError

CUDA_HEADER = re.compile(r"(?:cuda|device_|vector_|math_constants|sm_|crt/)[\w./]*")
C_HEADERS = {
    "cassert", "assert.h", "cfloat", "float.h", "climits", "limits.h", "cmath", "math.h", "cstddef", "stddef.h",
    "cstdint", "stdint.h", "cstdio", "stdio.h", "cstdlib", "stdlib.h", "cstring", "string.h", "algorithm", "limits",
    "type_traits", "utility",
}  # fmt: skip
OWN_HEADERS = {  # that kernelcheck brings, for NVRTC too
    "cooperative_groups.h", "cooperative_groups/reduce.h", "cooperative_groups/scan.h", "cuda_pipeline.h",
    "cuda_pipeline_primitives.h",
}  # fmt: skip
_PIPELINE = "__pipeline_memcpy_async", "__pipeline_commit", "__pipeline_wait_prior"
_HALF = "half", "__half", "half2", "__half2", "__float2half", "__half2float"
_BFLOAT = "nv_bfloat16", "__nv_bfloat16", "__nv_bfloat162", "__float2bfloat16", "__bfloat162float"
_NEEDS = {  # names, and the headers of which they need one
    **dict.fromkeys(_HALF, ("cuda_fp16.h",)),
    **dict.fromkeys(_BFLOAT, ("cuda_bf16.h",)),
    **dict.fromkeys(_PIPELINE, ("cuda_pipeline.h", "cuda_pipeline_primitives.h")),
    "cooperative_groups": ("cooperative_groups.h",),
    **dict.fromkeys(("FLT_MAX", "FLT_MIN", "FLT_EPSILON", "DBL_MAX"), ("cfloat", "float.h")),
    **dict.fromkeys(("uint8_t", "uint16_t", "uint32_t", "uint64_t"), ("cstdint", "stdint.h")),
}
_TYPES = {"int", "unsigned", "float", "double", "bool", "char", "short", "long", "auto", "size_t"}  # before a variable
_VECTORS = {f"{kind}{n}" for kind in ("float", "int", "uint", "double", "char", "uchar", "short") for n in (2, 3, 4)}
_OF_HOST = {
    "exit", "_exit", "abort", "atexit", "fork", "vfork", "system", "getpid", "kill", "raise", "signal", "sleep",
    "usleep", "rand", "srand", "getenv", "time", "fopen", "fclose", "fprintf", "puts", "putchar", "scanf", "qsort",
    "sprintf",
}  # fmt: skip
_OF_STD = {
    "min", "max", "abs", "fabs", "sqrt", "exp", "log", "pow", "sin", "cos", "tanh", "floor", "ceil", "round", "swap",
    "numeric_limits", "size_t", "isnan", "isinf", "move", "forward", "integral_constant", "bool_constant", "true_type",
    "false_type", "is_same", "is_same_v", "is_integral", "is_integral_v", "is_floating_point", "is_floating_point_v",
    "is_arithmetic", "is_arithmetic_v", "is_pointer", "is_pointer_v", "conditional", "conditional_t", "enable_if",
    "enable_if_t", "remove_const", "remove_const_t", "remove_cv", "remove_cv_t", "remove_reference",
    "remove_reference_t", "decay_t", "void_t", "declval",
}  # fmt: skip
_LIBRARIES = re.compile(r"(?:cub|thrust|cuda|nv|cute|cutlass)/.*|(?:mma|curand\w*|cuda_fp[468])\.h\w*")
_NOT_HERE = {
    "<<<": "a kernel is started from Python, kernel(grid=…, block=…, args=…): leave host code with <<<…>>> out",
    **dict.fromkeys(("__nv_fp8_e4m3", "__nv_fp8_e5m2", "__nv_fp8_storage_t"), "8-bit floats cannot run here"),
    "asm": "PTX in asm statements cannot run here",
    **dict.fromkeys(("wmma", "mma_sync"), "the matrix units (wmma) cannot run here"),
    **dict.fromkeys(("malloc", "new"), "memory that a kernel allocates itself cannot be looked at here"),
    **dict.fromkeys(("tex1D", "tex2D", "tex3D", "cudaTextureObject_t"), "textures cannot run here"),
    **dict.fromkeys(("cudaMalloc", "cudaMemcpy", "cudaFree", "cudaDeviceSynchronize", "cudaMallocManaged"),
                    "memory is allocated and copied in Python: leave the host code out"),
}  # fmt: skip


def refused(text: CudaText) -> CompileError | None:
    """Return the first thing in a text that a CUDA compiler refuses, or that cannot run here, None if there is none."""
    if (error := next(_words(text), None)) is not None:
        return error
    errors = [*_headers(text), *_functions(text), *_variables(text), *_shared(text), *_bodies(text)]
    return min(errors, key=lambda error: error.line or 0, default=None)


def _words(text: CudaText) -> Iterator[CompileError]:
    for token in text.tokens:
        if token.text in _NOT_HERE and token.kind in ("name", "mark"):
            yield text.refusal(_NOT_HERE[token.text], token.start)


def header(directive: str) -> str | None:
    """Return the name of the header that a directive includes."""
    match = re.match(r"#[ \t]*include[ \t]*[<\"]([^>\"\n]*)[>\"]", directive)
    return match[1] if match else None


def _headers(text: CudaText) -> Iterator[CompileError]:
    included = {name for token in text.tokens if token.kind == "directive" and (name := header(token.text))}
    for name, token in ((header(token.text), token) for token in text.tokens if token.kind == "directive"):
        if name and _LIBRARIES.fullmatch(name):
            what = f"<{name}> is a library for kernels that is not here: write what the kernel needs of it yourself"
            yield text.refusal(what, token.start)
        elif name and name not in C_HEADERS | OWN_HEADERS and not CUDA_HEADER.fullmatch(name):
            what = f"<{name}> is of the host's library, which a kernel cannot use: leave it out"
            yield text.refusal(what, token.start)
    missing = {name: needs for name, needs in _NEEDS.items() if not included & set(needs)}
    own = {token.text for before, token in pairwise(text.tokens) if before.kind == "name" and before.text in _TYPES}
    for token in text.tokens:
        if token.kind == "name" and token.text in missing and token.text not in own:
            if re.match(r"\s*=[^=]", text.source[token.start + len(token.text) :]):  # a variable, not a type
                yield text.refusal(f'identifier "{token.text}" is undefined', token.start)
            why = f"write #include <{missing[token.text][0]}> at the top"
            yield text.refusal(f"{token.text} needs a header: {why}", token.start)


def _functions(text: CudaText) -> Iterator[CompileError]:
    for function in text.functions:
        if "__global__" in function.words:
            if "void" not in function.words and "auto" not in function.words:
                yield text.refusal(f"a kernel returns void: __global__ void {function.name}(…)", function.start)
        elif "__device__" not in function.words:
            what = f"{function.name}() belongs to the host, so a GPU cannot call it"
            yield text.refusal(f"{what}: write __device__ in front of it, or leave it out", function.start)


def _variables(text: CudaText) -> Iterator[CompileError]:
    for variable in text.variables:
        if variable.words & {"__device__", "__constant__", "__shared__", "__managed__"}:
            continue
        fixed = variable.words & {"const", "constexpr"} and not variable.pointer
        if not fixed:
            why = "write __device__ in front of it, or __constant__ if no kernel changes it"
            yield text.refusal(f"{variable.name} belongs to the host, so a GPU cannot read it: {why}", variable.start)
        elif variable.array:
            yield text.refusal(
                f"{variable.name} is an array of the host: write __constant__ in place of const", variable.start
            )


def _shared(text: CudaText) -> Iterator[CompileError]:
    """Find shared variables that are given a value where they are declared."""
    for start, token in enumerate(text.tokens):
        index = start
        while token.text == "__shared__" and index < len(text.tokens) and not _ends(text, start, index):
            if text.tokens[index].text in ("=", "{"):
                why = "all threads would write it: let one thread, or each its own element, do so before a barrier"
                yield text.refusal(f"shared memory cannot be given a value where it is declared: {why}", token.start)
                break
            index = text.closes[index] + 1 if text.tokens[index].text in ("(", "[") else index + 1


def _ends(text: CudaText, start: int, index: int) -> bool:
    """Return whether the declaration that begins at `start` ends before a token, or should have ended."""
    token, before = text.tokens[index], text.tokens[index - 1]
    if token.kind != "name" or index <= start + 1:
        return token.text == ";"
    on_next_line = before.kind == "name" and "\n" in text.source[before.start : token.start]
    return on_next_line or before.text == "]" or (before.text == "," and token.text in PLAIN)


def _bodies(text: CudaText) -> Iterator[CompileError]:
    of_host = _OF_HOST - {one.name for one in text.functions}
    for function in text.functions:
        yield from _body(text, function, of_host)


def _body(text: CudaText, function: Function, of_host: set[str]) -> Iterator[CompileError]:
    for n in function.body:
        token, before = text.tokens[n], text.tokens[n - 1].text
        following = text.tokens[n + 1].text if n + 1 < len(text.tokens) else ""
        behind = text.tokens[n + 2].text if n + 2 < len(text.tokens) else ""
        called = following == "(" and before not in (".", "->")
        if token.text in ("__device__", "__constant__"):
            why = "a lambda in a kernel needs no such word" if before == "]" else "declare it outside of the function"
            yield text.refusal(f"{token.text} cannot stand inside a function: {why}", token.start)
        elif called and token.text in text.kernels and before != "::":
            what = f"{token.text} is a kernel, which no kernel can call"
            yield text.refusal(f"{what}: make its body a function with __device__", token.start)
        elif called and token.text in of_host:
            yield text.refusal(f"{token.text}() is of the host's library, which a kernel cannot use", token.start)
        elif called and token.text in _VECTORS and behind not in ("*", "&", ")"):
            yield text.refusal(f"{token.text} has no constructor: write make_{token.text}(…)", token.start)
        elif token.text == "cuda" and following == "::":
            what = f"CUDA's C++ library is not here, and so not cuda::{behind}"
            yield text.refusal(what, token.start)
        elif token.text == "std" and following == "::" and behind not in _OF_STD:
            yield text.refusal(f"std::{behind} is of the host's library, which a kernel cannot use", token.start)
