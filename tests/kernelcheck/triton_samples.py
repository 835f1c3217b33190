"""Kernels in Triton's language, as a course or a tutorial has them, with what they are to compute.

`python tests/kernelcheck/triton_samples.py` runs them under the installed Triton's own interpreter (TRITON_INTERPRET=1)
and under ours, and prints where the two differ.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional


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


ADD = """
@triton.jit
def kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(axis=0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, x + y, mask=mask)
"""


def _gelu():
    x, b = _random(13, 37), _random(37)
    return (4,), (x, b, torch.zeros(13, 37), 13 * 37, 37), {"BLOCK": 128}, functional.gelu(x + b)


GELU = """
@triton.jit
def gelu(v):
    return 0.5 * v * (1 + tl.math.erf(v * 0.7071067811865476))

@triton.jit
def kernel(x_ptr, b_ptr, out_ptr, n, width, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    b = tl.load(b_ptr + at % width, mask=inside)
    tl.store(out_ptr + at, gelu(x + b), mask=inside)
"""


def _softmax():
    x = _random(7, 50)
    return (7,), (x, torch.zeros(7, 50), 50, 50, 50), {"BLOCK": 64}, x.softmax(1)


SOFTMAX = """
@triton.jit
def kernel(x_ptr, out_ptr, x_stride, out_stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + columns, mask=columns < n, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    e = tl.exp(x)
    tl.store(out_ptr + row * out_stride + columns, e / tl.sum(e, axis=0), mask=columns < n)
"""


def _online():
    x = _random(5, 100)
    return (5,), (x, torch.zeros(5, 100), 100, 100), {"BLOCK": 32}, x.softmax(1)


ONLINE = """
@triton.jit
def kernel(x_ptr, out_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    m = -float("inf")
    d = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + at, mask=at < n, other=-float("inf"))
        new = tl.maximum(m, tl.max(x, axis=0))
        d = d * tl.exp(m - new) + tl.sum(tl.exp(x - new), axis=0)
        m = new
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + at, mask=at < n)
        tl.store(out_ptr + row * stride + at, tl.exp(x - m) / d, mask=at < n)
"""


def _matmul(dtype=torch.float32):
    a, b = _random(33, 50).bfloat16().to(dtype), _random(50, 41).bfloat16().to(dtype)  # which TF32 leaves as they are
    args = (a, b, torch.zeros(33, 41, dtype=dtype), 33, 41, 50, *a.stride(), *b.stride(), 41, 1)
    return (3, 2), args, {"BM": 16, "BN": 32, "BK": 16}, (a.float() @ b.float()).to(dtype)


MATMUL = """
@triton.jit
def kernel(a_ptr, b_ptr, out_ptr, M, N, K, am, ak, bk, bn, cm, cn,
           BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * am + inner[None, :] * ak
    b_ptrs = b_ptr + inner[:, None] * bk + columns[None, :] * bn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (inner[None, :] < K - k * BK), other=0.0)
        b = tl.load(b_ptrs, mask=(inner[:, None] < K - k * BK) & (columns[None, :] < N), other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BK * ak
        b_ptrs += BK * bk
    c = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + rows[:, None] * cm + columns[None, :] * cn, c, mask=(rows[:, None] < M) & (columns[None, :] < N))
"""


def _attention():
    q, k, v = (_random(2, 40, 16, seed=seed).bfloat16().float() for seed in range(3))
    want = (q @ k.transpose(1, 2) / 4).softmax(-1) @ v
    return (3, 2), (q, k, v, torch.zeros(2, 40, 16), 40, 0.25), {"D": 16, "BM": 16, "BN": 16}, want


ATTENTION = """
@triton.jit
def kernel(q_ptr, k_ptr, v_ptr, out_ptr, n, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    base = tl.program_id(1) * n * D
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * D + d[None, :], mask=rows[:, None] < n, other=0.0)
    m = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, n, BN):
        keys = start + tl.arange(0, BN)
        k = tl.load(k_ptr + base + keys[None, :] * D + d[:, None], mask=keys[None, :] < n, other=0.0)
        v = tl.load(v_ptr + base + keys[:, None] * D + d[None, :], mask=keys[:, None] < n, other=0.0)
        s = tl.where(keys[None, :] < n, tl.dot(q, k) * scale, -float("inf"))
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        shrink = tl.exp(m - new)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p, v, input_precision="ieee")
        m = new
    out = acc / total[:, None]
    tl.store(out_ptr + base + rows[:, None] * D + d[None, :], out, mask=rows[:, None] < n)
"""


def _transpose():
    x = _random(45, 70)
    return (2, 3), (x, torch.zeros(70, 45), 45, 70), {"BLOCK": 32}, x.t().contiguous()


TRANSPOSE = """
@triton.jit
def kernel(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    x = tl.load(x_ptr + rows[:, None] * N + columns[None, :], mask=inside)
    tl.store(out_ptr + columns[:, None] * M + rows[None, :], tl.trans(x), mask=tl.trans(inside))
"""


def _reduction():
    x = _random(1000)
    return (4,), (x, torch.zeros(1), 1000), {"BLOCK": 256}, x.sum()[None]


REDUCTION = """
@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x, axis=0))
"""


def _last():
    x = _random(1000)
    args = (x, torch.zeros(1), torch.zeros(4), torch.zeros(1, dtype=torch.int32), 1000)
    return (4,), args, {"BLOCK": 256}, x.sum()[None]


LAST = """
@triton.jit
def kernel(x_ptr, out_ptr, parts_ptr, done_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    tl.store(parts_ptr + pid, tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0)))
    if tl.atomic_add(done_ptr, 1) == tl.num_programs(0) - 1:
        parts = tl.load(parts_ptr + tl.arange(0, 4))
        tl.store(out_ptr, tl.sum(parts))
"""


def _lock():
    x = _random(1000)
    return (4,), (x, torch.zeros(1), torch.zeros(1, dtype=torch.int32), 1000), {"BLOCK": 256}, x.sum()[None]


LOCK = """
@triton.jit
def kernel(x_ptr, out_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0))
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(out_ptr, tl.load(out_ptr) + part)
    tl.atomic_xchg(lock_ptr, 0)
"""


def _types():
    x = torch.arange(-64, 64, dtype=torch.int32)
    out = torch.zeros(128, 8)
    return (1,), (x, out, torch.zeros(128, dtype=torch.float16)), {"BLOCK": 128}, None


TYPES = """
@triton.jit
def kernel(x_ptr, out_ptr, half_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    out = out_ptr + at * 8
    tl.store(out, x % 7)
    tl.store(out + 1, x // 7)
    tl.store(out + 2, x.to(tl.float16) * 0.1 + x)
    tl.store(out + 3, (x * 0.1).to(tl.float16))
    tl.store(out + 4, x / 3)
    tl.store(out + 5, (x * 2147483647) >> 3)
    tl.store(out + 6, (x > 3) & (x < 9))
    tl.store(out + 7, (x * 2.7).to(tl.int32) + (x ^ 5) - (x & 3) * (x << 2))
    half = x.to(tl.float16) / 7
    tl.store(half_ptr + at, half)
"""


def _shapes():
    x = _random(16, 32)
    return (1,), (x, torch.zeros(8, 32)), {"M": 16, "N": 32}, None


SHAPES = """
@triton.jit
def kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + columns[None, :])
    tl.store(out_ptr + columns, tl.max(x, axis=0))
    tl.store(out_ptr + N + columns, tl.argmax(x, axis=0))
    tl.store(out_ptr + 2 * N + rows, tl.sum(tl.where(x > 0, x, 0.0), axis=1))
    tl.store(out_ptr + 3 * N + rows, tl.argmin(x, axis=1))
    tl.store(out_ptr + 4 * N + columns, tl.sum(tl.cumsum(x, axis=1), axis=0))
    tl.store(out_ptr + 5 * N + columns, tl.sum(tl.reshape(tl.trans(x), (M, N)), axis=0))
    tl.store(out_ptr + 6 * N + columns, tl.sum(tl.broadcast_to(tl.expand_dims(columns, 0), (M, N)) * x, 0))
    tl.store(out_ptr + 7 * N + columns, tl.sum(tl.sigmoid(x) + tl.sqrt(tl.abs(x)) + tl.exp2(x) - tl.log(x * x + 1), 0))
"""


def _loops():
    x = _random(64)
    return (1,), (x, torch.zeros(64), 5), {"BLOCK": 64, "STEPS": 3}, None


LOOPS = """
@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    total = tl.zeros_like(x)
    for i in range(n):
        total += x * i
    for i in tl.static_range(STEPS):
        total += x / (i + 1)
    k = n
    while k > 1:
        total = tl.where(at % k == 0, total + k, total - 1)
        k //= 2
    total = total if n > 3 else x
    if n % 2 == 1:
        total = -total
    tl.store(out_ptr + at, tl.maximum(total, -x) + min(n, 3))
"""

SAMPLES = {
    "vector add": Sample(ADD, _add),
    "bias and GELU": Sample(GELU, _gelu),
    "softmax": Sample(SOFTMAX, _softmax),
    "online softmax": Sample(ONLINE, _online),
    "matrix product": Sample(MATMUL, _matmul),
    "matrix product in 16 bits": Sample(MATMUL, lambda: _matmul(torch.float16)),
    "attention": Sample(ATTENTION, _attention),
    "transpose": Sample(TRANSPOSE, _transpose),
    "reduction": Sample(REDUCTION, _reduction),
    "last program": Sample(LAST, _last),
    "lock": Sample(LOCK, _lock),
    "types": Sample(TYPES, _types),
    "shapes": Sample(SHAPES, _shapes),
    "loops": Sample(LOOPS, _loops),
}


def compare() -> list[str]:
    """Return where our interpreter and the installed Triton's differ, a line for each kernel.

    Without TRITON_INTERPRET=1, and so without a GPU, only whether ours takes kernels that are to be compiled.
    """
    import triton
    import triton.language as tl

    import kernelcheck

    different = []
    for name, sample in SAMPLES.items():
        kernel, (grid, args, options, want) = sample.kernel(triton, tl), sample.call()
        report = kernelcheck.checked(kernel, grid, *args, **options)
        pairs = [(report.results.get(sample.out), want)]
        if os.environ.get("TRITON_INTERPRET") == "1":
            kernel[grid](*args, **options)
            results = [one for one in args if isinstance(one, torch.Tensor)]
            pairs = list(zip(report.results.values(), results, strict=True))
        for ours, other in pairs:
            if report.fault or not (other is None or torch.allclose(ours, other, rtol=1e-3, atol=1e-4)):
                different.append(f"{name}: {report.fault or (ours, other)}")
    return different


if __name__ == "__main__":
    sys.path += sys.argv[1:]
    found = compare()
    print("\n".join(found) or f"all {len(SAMPLES)} kernels alike")
    sys.exit(bool(found))
