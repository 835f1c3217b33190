"""Kernels in Triton's language, as a course or a tutorial has them, with what they are to compute."""

from __future__ import annotations

import linecache
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Sample:
    """The text of a kernel, and a function that gives its grid, arguments, options and the expected first output."""

    text: str
    call: Callable[[], tuple]
    out: str = "out_ptr"

    def kernel(self, triton, tl, *edits: tuple[str, str]):
        """Return the kernel, compiled from its text with some parts replaced, each of which must stand in it once."""
        text = self.text
        for old, new in edits:
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the kernel"
            text = text.replace(old, new)
        file = f"sample_{abs(hash(text))}.py"
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        space = {"triton": triton, "tl": tl, "__name__": "samples"}
        exec(compile(text, file, "exec"), space)
        return space["kernel"]


def _random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def _add():
    x, y = _random(1000), _random(1000, seed=1)
    return (4,), (x, y, torch.zeros(1000), 1000), {"BLOCK": 256}, x + y


def _gelu():
    x, b = _random(13, 37), _random(37)
    return (4,), (x, b, torch.zeros(13, 37), 13 * 37, 37), {"BLOCK": 128}, functional.gelu(x + b)


def _softmax():
    x = _random(7, 50)
    return (7,), (x, torch.zeros(7, 50), 50, 50, 50), {"BLOCK": 64}, x.softmax(1)


def _online():
    x = _random(5, 100)
    return (5,), (x, torch.zeros(5, 100), 100, 100), {"BLOCK": 32}, x.softmax(1)


def _matmul(dtype=torch.float32):
    a, b = _random(33, 50).bfloat16().to(dtype), _random(50, 41).bfloat16().to(dtype)  # which TF32 leaves as they are
    args = (a, b, torch.zeros(33, 41, dtype=dtype), 33, 41, 50, *a.stride(), *b.stride(), 41, 1)
    return (3, 2), args, {"BM": 16, "BN": 32, "BK": 16}, (a.float() @ b.float()).to(dtype)


def _attention():
    q, k, v = (_random(2, 40, 16, seed=seed).bfloat16().float() for seed in range(3))
    want = (q @ k.transpose(1, 2) / 4).softmax(-1) @ v
    return (3, 2), (q, k, v, torch.zeros(2, 40, 16), 40, 0.25), {"D": 16, "BM": 16, "BN": 16}, want


def _sum(*more):
    x = _random(1000)
    return (4,), (x, torch.zeros(1), *(one.clone() for one in more), 1000), {"BLOCK": 256}, x.sum()[None]


def _flags():
    start = torch.arange(40.0)
    return (40,), (start, torch.zeros(40), torch.zeros(2, dtype=torch.int32), 40), {}, (start + 1).roll(-1).cumsum(0)


FLAG = torch.zeros(1, dtype=torch.int32)
SAMPLES = {
    "vector add": Sample(TEXTS["add"], _add), "bias and GELU": Sample(TEXTS["gelu"], _gelu),
    "softmax": Sample(TEXTS["softmax"], _softmax), "online softmax": Sample(TEXTS["online"], _online),
    "matrix product": Sample(TEXTS["matmul"], _matmul),
    "matrix product in 16 bits": Sample(TEXTS["matmul"], lambda: _matmul(torch.float16)),
    "attention": Sample(TEXTS["attention"], _attention), "reduction": Sample(TEXTS["reduction"], _sum),
    "last program": Sample(TEXTS["last"], lambda: _sum(torch.zeros(4), FLAG)),
    "lock": Sample(TEXTS["lock"], lambda: _sum(FLAG)), "programs that wait": Sample(TEXTS["flags"], _flags),
    "transpose": Sample(TEXTS["transpose"], lambda: (
        (2, 3), (x := _random(45, 70), torch.zeros(70, 45), 45, 70), {"BLOCK": 32}, x.t().contiguous())),
    "types": Sample(TEXTS["types"], lambda: (
        (1,), (torch.arange(-64, 64, dtype=torch.int32), torch.zeros(128, 8), torch.zeros(128).half()), {"BLOCK": 128},
        None)),
    "shapes": Sample(TEXTS["shapes"], lambda: ((1,), (_random(16, 32), torch.zeros(8, 32)), {"M": 16, "N": 32}, None)),
    "loops": Sample(TEXTS["loops"], lambda: (
        (1,), (_random(64), torch.zeros(64), 5), {"BLOCK": 64, "STEPS": 3}, None)),
}  # fmt: skip
