"""Code that a C++ compiler accepts and a CUDA compiler refuses.

The rules are those of NVRTC 13, which `torch.cuda._compile_kernel` calls, and of nvcc 13 with the flags of
`torch.utils.cpp_extension.load_inline`. A text that one of the two refuses is refused, at the reader's line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from kernelcheck.cuda.text import PLAIN, CudaText, Function, Token
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
_OF_CMATH = {  # those that nvrtc.h brings
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh",
    "erf", "erfc", "exp", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "frexp", "hypot",
    "ilogb", "isfinite", "isinf", "isnan", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2",
    "logb", "lrint", "lround", "modf", "nearbyint", "nextafter", "pow", "remainder", "rint", "round", "scalbn",
    "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc",
}  # fmt: skip
_OF_STD = _OF_CMATH | {
    "min", "max", "swap", "numeric_limits", "size_t", "ptrdiff_t", "int8_t", "uint8_t", "int16_t", "uint16_t",
    "int32_t", "uint32_t", "int64_t", "uint64_t", "move", "forward", "integral_constant", "bool_constant", "true_type",
    "false_type", "conditional", "conditional_t", "enable_if", "enable_if_t", "is_same", "is_same_v", "is_integral",
    "is_integral_v", "is_floating_point", "is_floating_point_v", "is_arithmetic", "is_arithmetic_v", "is_pointer",
    "is_pointer_v", "is_signed", "is_signed_v", "is_unsigned", "is_unsigned_v", "make_signed", "make_signed_t",
    "make_unsigned", "make_unsigned_t", "remove_const", "remove_const_t", "remove_cv", "remove_cv_t",
    "remove_reference", "remove_reference_t", "remove_pointer", "remove_pointer_t", "decay", "decay_t", "void_t",
    "declval",
}  # fmt: skip
_OF_NO_HOST = re.compile(
    r"is_|remove_|add_|common_|align|underlying|rank|extent|index_seq|integer_seq|make_i|pair|tuple|array|complex"
)
_LIBRARIES = re.compile(r"(?:cub|thrust|cuda|nv|cute|cutlass)/.*|(?:mma|curand\w*|cuda_fp[468])\.h\w*")
_CALLS_OF_HOST = "cudaMalloc", "cudaMemcpy", "cudaFree", "cudaDeviceSynchronize", "cudaMallocManaged"
_NOT_HERE = {
    "<<<": "no kernel starts another here (dynamic parallelism); Python starts it: kernel(grid=…, block=…, args=…)",
    **dict.fromkeys(("__nv_fp8_e4m3", "__nv_fp8_e5m2", "__nv_fp8_storage_t"), "8-bit floats cannot run here"),
    "asm": "PTX in asm statements cannot run here",
    **dict.fromkeys(("wmma", "mma_sync"), "the matrix units (wmma) cannot run here"),
    **dict.fromkeys(("malloc", "new"), "memory that a kernel allocates itself cannot be looked at here"),
    **dict.fromkeys(("tex1D", "tex2D", "tex3D", "cudaTextureObject_t"), "textures cannot run here"),
    **dict.fromkeys(_CALLS_OF_HOST, "memory is allocated and copied in Python: leave the host code out"),
}  # fmt: skip


def refused(text: CudaText) -> CompileError | None:
    """Return the first thing in a text that a CUDA compiler refuses, or that cannot run here, None if there is none."""
    if (error := next(_words(text), None)) is not None:
        return error
    errors = [*_headers(text), *_functions(text), *_variables(text), *_shared(text), *_bodies(text)]
    return min(errors, key=lambda error: error.line or 0, default=None)


def _words(text: CudaText) -> Iterator[CompileError]:
    host = {n for one in text.functions if not one.words & {"__global__", "__device__"} for n in one.body}
    for n, token in enumerate(text.tokens):
        if token.kind not in ("name", "mark") or n in host:
            continue
        following, behind = (text.tokens[n + 1 : n + 3] + [Token("", "", 0)] * 2)[:2]
        if token.text in _NOT_HERE or (token.text in ("texture", "surface") and following.text == "<"):
            yield text.refusal(_NOT_HERE.get(token.text, "textures cannot run here"), token.start)
        elif token.text == "std" and following.text == "::" and behind.text not in _OF_STD:
            of_host = "of the host's library, which a kernel cannot use"
            what = "not here yet" if _OF_NO_HOST.match(behind.text) else of_host
            yield text.refusal(f"std::{behind.text} is {what}", token.start)


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
            own = f'"{name}" is another file, and this text alone is compiled: write what the kernel needs of it here'
            yield text.refusal(own if '"' in token.text else what, token.start)
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
            what, words = f"{function.name}() belongs to the host", {text.tokens[n].text for n in function.body}
            way = "so a GPU cannot call it: write __device__ in front of it, or leave it out"
            if words & {"<<<", *_CALLS_OF_HOST}:
                way = "which is Python here: kernel(grid=…, block=…, args=…) starts a kernel. Leave this function out"
            yield text.refusal(f"{what}, {way}", function.start)


def _variables(text: CudaText) -> Iterator[CompileError]:
    for variable in text.variables:
        if variable.words & {"__device__", "__constant__", "__shared__", "__managed__"}:
            continue
        fixed = variable.words & {"const", "constexpr"} and not variable.pointer
        if not fixed:
            why = "so a GPU cannot read it: write __device__ in front of it, or __constant__ if no kernel changes it"
            why = why if _is_read(text, variable.name) else "and no function of the GPU uses it: leave it out"
            yield text.refusal(f"{variable.name} belongs to the host, {why}", variable.start)
        elif variable.array and _is_read(text, variable.name):
            what = f"{variable.name} is an array of the host: write __constant__ in place of const"
            yield text.refusal(what, variable.start)


def _is_read(text: CudaText, name: str) -> bool:
    """Return whether a function of the GPU uses the variable `name` of the file, and none of its own."""
    for function in text.functions:
        uses = [n for n in function.body if text.tokens[n].text == name]
        if uses and not re.search(rf"\b{name}\b", function.parameters):
            before = text.tokens[uses[0] - 1]
            if before.kind != "name" or before.text in ("return", "case"):  # no type: its first place declares nothing
                return True
    return False


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
        elif token.text == "cuda" and following == "::" and before != "::":  # at::cuda is PyTorch's
            what = f"CUDA's C++ library is not here, and so not cuda::{behind}"
            yield text.refusal(what, token.start)
