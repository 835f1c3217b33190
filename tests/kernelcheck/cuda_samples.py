"""Launches of the kernels in cuda_samples.cu, and hostile kernels from hostile.cu."""
# ruff: noqa: E731

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


def read(name: str) -> list[tuple[str, str]]:
    """Return the heads and the texts of the kernels in a file beside this one."""
    file = Path(__file__).with_name(name).read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in file.split("\n\n// == ")[1:]]
    return [(head, text.rstrip("\n")) for head, _, text in parts]


HEADS = [head.split(" | ") for head, _ in read("cuda_samples.cu")]
TEXTS = {name: text for (name, *_), (_, text) in zip(HEADS, read("cuda_samples.cu"), strict=True)}
CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))


@dataclass
class Base:
    """A right kernel and a launch of it; `made` gives arguments, `right` says whether they hold the result."""

    source: str
    grid: object
    block: object
    made: Callable[[], list]
    right: Callable[[list], bool]
    shared_mem: int = 0


def _close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(got, expected.to(got.dtype), atol=1e-4, rtol=1e-4)


def _made(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BASES = {
    "add": Base(TEXTS["add"], 4, 256, lambda: [x := torch.arange(1000.0), x.flip(0) / 7, torch.zeros(1000), 1000],
                lambda a: _close(a[2], a[0] + a[1])),
    "transpose": Base(TEXTS["transpose"], (3, 4), (16, 16),
                      lambda: [torch.arange(50 * 37.0).reshape(50, 37), torch.zeros(37, 50), 50, 37],
                      lambda a: _close(a[1], a[0].t())),
    "total": Base(TEXTS["total"], 4, 256, lambda: [torch.arange(1000.0) % 13, torch.zeros(4), 1000],
                  lambda a: _close(a[1].sum(), a[0].sum())),
    "softmax": Base(TEXTS["softmax"], 5, 64,
                    lambda: [torch.randn(5, 77, generator=_made(1)) * 9, torch.zeros(5, 77), 5, 77],
                    lambda a: _close(a[1], a[0].softmax(1))),
    "product": Base(TEXTS["product"], (3, 2), (16, 16),
                    lambda: [torch.rand(20, 41, generator=(made := _made(2))), torch.rand(41, 37, generator=made),
                             torch.zeros(20, 37), 20, 37, 41], lambda a: _close(a[2], a[0] @ a[1])),
    "histogram": Base(TEXTS["histogram"], 4, 128,
                      lambda: [torch.randint(0, 16, (3000,), generator=_made(3), dtype=torch.int32),
                               torch.zeros(16, dtype=torch.int32), 3000],
                      lambda a: bool((a[1] == torch.bincount(a[0], minlength=16)).all())),
}  # fmt: skip

# Other right ways to write them: none may be called wrong.
RIGHT: list[tuple[str, str, dict]] = [
    ("add", TEXTS["add 2"], {"grid": 2, "block": 64}), ("add", TEXTS["add 3"], {"grid": 1}),
    ("transpose", TEXTS["transpose 2"], {}), ("transpose", TEXTS["transpose 3"], {"grid": (1, 1), "block": (32, 32)}),
    ("total", TEXTS["total 2"], {"grid": 2}), ("total", TEXTS["total 3"], {}),
    ("softmax", TEXTS["softmax 2"], {"grid": 2, "block": (32, 4)}), ("product", TEXTS["product 2"], {}),
    ("product", TEXTS["product 3"], {"name": "product<16>"}), ("histogram", TEXTS["histogram 2"], {"grid": 24}),
]  # fmt: skip

# Kernels in many styles, right and wrong: what each must be called.
g = torch.Generator().manual_seed(0)
R = lambda *shape: torch.randn(*shape, generator=g)
Z = F = torch.zeros
T = []


def t(name, grid, block, args, expect, kname=None, shared=0):
    """Add a kernel and what is expected: a kind of fault, None for a right one, or a function that says whether it is.

    Or what it has written, what that is to be, and how far the two may differ.
    """
    if isinstance(expect, tuple):
        got, want, far = expect
        expect = lambda: torch.allclose(got, want, rtol=far, atol=far)
    text = TEXTS[name].replace("\n", "\r\n" if "crlf" in name else "\n")
    T.append((name, text, grid, block, args, expect, kname, shared))


x = R(256)
t("bitonic", 1, 256, [x], (x, x.sort()[0].clone(), 0))
x, y, taps = R(200), Z(200), torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])[None, None]
t("conv", 4, 64, [x, y, 200], (y, torch.conv1d(x[None, None], taps, padding=2)[0, 0], 1e-5))
x, gain, bias, y = R(6, 512), R(512), R(512), Z(6, 512)
t("layernorm", 6, 128, [x, gain, bias, y, 512, 1e-05], (y, torch.layer_norm(x, (512,), gain, bias), 1e-4))
matrix, x, y = (torch.rand(10, 50, generator=g) < 0.3) * R(10, 50), R(50), Z(10)
starts, columns = torch.cat([torch.zeros(1), (matrix != 0).sum(1).cumsum(0)]).int(), matrix.nonzero()[:, 1].int()
t("csr", 3, 128, [starts, columns, matrix[matrix != 0], x, y, 10], (y, matrix @ x, 1e-4))
positive, kept, count = R(300), Z(300), torch.zeros(1, dtype=torch.int32)
t("warp aggregated", 3, 128, [positive, kept, count, 300], lambda: (
    kept[: count.item()].sort()[0].equal(positive[positive > 0].sort()[0])
))  # fmt: skip
x, y = R(500).double(), Z(1, dtype=torch.float64)
t("double cas", 4, 128, [x, y, 500], (y, x.sum(), 1e-5))
x, y = R(100).half(), R(100).half()
t("half2", 1, 64, [x, y, 2.0, 50], (y, (2 * x.float() + y.float()).half(), 0))
x, y = R(64).bfloat16(), Z(64).bfloat16()
t("bf16", 1, 64, [x, y], (y, x * 2, 0))
for name, *more in HEADS:
    if more:
        grid, block, args, *named = eval(f"({more[0]},)", {"torch": torch, "R": R, "Z": Z, "g": g})
        t(name, grid, block, args, (more[1:] or [None])[0], *named)

# text, a phrase of what is said of it, arguments; two blocks of 64 threads
HOSTILE = []
for head, text in read("hostile.cu"):
    phrase, _, given = head.partition(" | ")
    HOSTILE.append((text, phrase, list(eval(f"({given or 'F(64)'},)", {"torch": torch, "F": F}))))
