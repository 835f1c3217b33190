"""Launches of the kernels in cuda_samples.cu, ways to break six of them, and hostile kernels from hostile.cu."""
# ruff: noqa: E501, E731

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch


def read(name: str) -> list[tuple[str, str]]:
    """Return the heads and the texts of the kernels in a file beside this one."""
    file = Path(__file__).with_name(name).read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in file.split("\n\n// == ")[1:]]
    return [(head, text.rstrip("\n")) for head, _, text in parts]


TEXTS = dict(read("cuda_samples.cu"))


@dataclass
class Base:
    """A right kernel and a launch of it; `made` gives arguments, `right` says whether they hold the result."""

    source: str
    grid: object
    block: object
    made: Callable[[], list]
    right: Callable[[list], bool]
    shared_mem: int = 0


@dataclass
class Broken:
    """`base` with texts replaced: what kind of fault it is, on the line with `at`, and a word of its message."""

    base: str
    edits: list[tuple[str, str]]
    kind: str
    at: str = ""
    word: str = ""
    launch: dict = field(default_factory=dict)


def _close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(got, expected.to(got.dtype), atol=1e-4, rtol=1e-4)


def _add() -> list:
    x = torch.arange(1000.0)
    return [x, x.flip(0) / 7, torch.zeros(1000), 1000]


def _transpose() -> list:
    return [torch.arange(50 * 37.0).reshape(50, 37), torch.zeros(37, 50), 50, 37]


def _total() -> list:
    return [torch.arange(1000.0) % 13, torch.zeros(4), 1000]


def _softmax() -> list:
    return [torch.randn(5, 77, generator=torch.Generator().manual_seed(1)) * 9, torch.zeros(5, 77), 5, 77]


def _product() -> list:
    made = torch.Generator().manual_seed(2)
    return [torch.rand(20, 41, generator=made), torch.rand(41, 37, generator=made), torch.zeros(20, 37), 20, 37, 41]


def _histogram() -> list:
    x = torch.randint(0, 16, (3000,), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    return [x, torch.zeros(16, dtype=torch.int32), 3000]


BASES = {
    "add": Base(TEXTS["add"], 4, 256, _add, lambda a: _close(a[2], a[0] + a[1])),
    "transpose": Base(TEXTS["transpose"], (3, 4), (16, 16), _transpose, lambda a: _close(a[1], a[0].t())),
    "total": Base(TEXTS["total"], 4, 256, _total, lambda a: _close(a[1].sum(), a[0].sum())),
    "softmax": Base(TEXTS["softmax"], 5, 64, _softmax, lambda a: _close(a[1], a[0].softmax(1))),
    "product": Base(TEXTS["product"], (3, 2), (16, 16), _product, lambda a: _close(a[2], a[0] @ a[1])),
    "histogram": Base(
        TEXTS["histogram"], 4, 128, _histogram, lambda a: bool((a[1] == torch.bincount(a[0], minlength=16)).all())
    ),
}

OOB, RACE, DIVERGE, UNSET = "out of bounds", "race", "divergent barrier", "uninitialised shared"
SYNC = "__syncthreads();"
BROKEN = [
    # vector add
    Broken("add", [("  if (i < n)\n", "")], OOB, "out[i] =", "element 1000 of `"),
    Broken("add", [("x[i] +", "x[i - 1] +")], OOB, "x[i - 1]", "element -1 of `x`"),
    Broken("add", [("i = blockIdx.x * blockDim.x + threadIdx.x", "i = threadIdx.x"), ("x[i]", "x[i + blockIdx.x]")], RACE, "", "block"),
    Broken("add", [("out[i] =", "out[0] =")], RACE, "out[0] =", "`out`[0]"),
    Broken("add", [("out[i] = x[i]", "out[i / 2] = x[i]")], RACE, "out[i / 2]", "thread 0"),
    Broken("add", [("if (i < n)", "if (i >= n) return;\n  __syncthreads();")], DIVERGE, SYNC, "ended"),
    Broken("add", [("out[i] =", "((float*)8)[i] =")], "wild pointer", "((float*)8)", "null"),
    Broken("add", [("    out[i] =", "    while (true) {}\n    out[i] =")], "endless", ""),
    Broken("add", [("i < n", "i / (n - 1000) < 1")], "division by zero", "i / (n"),
    # transpose
    Broken("transpose", [(SYNC, "")], RACE, "tile[threadIdx", "no __syncthreads()"),
    Broken("transpose", [("if (r < rows && c < cols)\n", "")], OOB, "in[r * cols + c]", "`in`"),
    Broken("transpose", [("tile[TILE][TILE + 1]", "tile[TILE / 2][TILE]")], OOB, "tile[threadIdx.y]", "`tile`"),
    Broken("transpose", [("r < rows && c < cols", "r < rows && c < cols - 1")], UNSET, "out[r * rows", "`tile`"),
    Broken("transpose", [("    tile[threadIdx.y][threadIdx.x] = in[r * cols + c];\n  __syncthreads();", "{\n    tile[threadIdx.y][threadIdx.x] = in[r * cols + c];\n  __syncthreads(); }")], DIVERGE, SYNC),
    Broken("transpose", [("__shared__ float tile[TILE][TILE + 1]", "float tile[TILE][TILE + 1]"), ("int r =", "float* p = &tile[0][0];\n  if (p == (float*)&c) return;\n  int r =")], "", ""),
    # reduction
    Broken("total", [("0.0f;\n  __syncthreads();", "0.0f;")], RACE, "part[t]", "no __syncthreads()"),
    Broken("total", [("    if (t < step)\n      part[t] += part[t + step];\n    __syncthreads();", "    if (t < step) {\n      part[t] += part[t + step];\n    __syncthreads(); }")], DIVERGE, SYNC),
    Broken("total", [("i < n ? x[i] : 0.0f", "x[i]")], OOB, "x[i]", "`x`"),
    Broken("total", [("  part[t] = i < n ? x[i] : 0.0f;", "  if (i < n) part[t] = x[i];")], UNSET, "part[t + step]", "`part`"),
    Broken("total", [("  if (t == 0)\n", "")], "", ""),  # the same value from each thread: not wrong
    Broken("total", [("    __syncthreads();\n", "    __syncwarp();\n")], RACE, "part[t]"),
    Broken("total", [("step /= 2", "step /= 1")], "endless", ""),
    # softmax
    Broken("softmax", [("  most = part[0];\n  __syncthreads();", "  most = part[0];")], RACE, "part[", "`part`[0]"),
    Broken("softmax", [("part[t] = most;\n  __syncthreads();", "part[t] = most;")], RACE, "part[t"),
    Broken("softmax", [("c < cols; c += blockDim.x)\n    most", "c <= cols; c += blockDim.x)\n    most")], OOB, "row[c]", "`x`"),
    Broken("softmax", [("y[blockIdx.x * cols + c]", "y[c]")], RACE, "y[c]", "block"),
    Broken("softmax", [("c += blockDim.x)\n    sum", "c += 0)\n    sum")], "endless", "sum +="),
    # tiled product
    Broken("product", [("__syncthreads();  // loaded", "")], RACE, "threadIdx.x]", "no __syncthreads()"),
    Broken("product", [("row < M && ka < K", "ka < K")], OOB, "A[row * K + ka]", "`A`"),
    Broken("product", [("if (row < M && col < N)", "if (row < M)")], RACE, "C[row * N + col]", "`C`"),
    Broken("product", [("  float sum = 0;", "  if (row >= M || col >= N) return;\n  float sum = 0;")], DIVERGE, SYNC, "ended"),
    Broken("product", [("j < TILE", "j <= TILE")], OOB, "sum +=", "shared"),
    Broken("product", [("b[threadIdx.y][threadIdx.x] = kb < K && col < N ?", "if (kb < K && col < N) b[threadIdx.y][threadIdx.x] = true ?")], UNSET, "sum +=", "`b`"),
    Broken("product", [("float a[TILE][TILE], b[TILE][TILE]", "float a[TILE][TILE], b[TILE][4 * TILE * TILE]")], "launch", "", "49152"),
    Broken("product", [], "launch", "", "1024", {"block": (33, 32)}),
    # histogram
    Broken("histogram", [("atomicAdd(&own[x[i]], 1)", "own[x[i]] += 1")], RACE, "own[x[i]]", "`own`"),
    Broken("histogram", [("own[threadIdx.x] = 0;\n  __syncthreads();", "own[threadIdx.x] = 0;")], RACE, "own[", "`own`"),
    Broken("histogram", [("own[threadIdx.x] = 0;\n  __syncthreads();", "own[threadIdx.x] = 0;"), ("&own[x[i]]", "&own[threadIdx.x % 16]")], RACE, "atomicAdd(&own[t", "wrote"),
    Broken("histogram", [("  if (threadIdx.x < 16)\n    own[threadIdx.x] = 0;\n", "")], UNSET, "own[x[i]]", "`own`"),
    Broken("histogram", [("  if (threadIdx.x < 16)\n    atomicAdd(&bins", "    atomicAdd(&bins")], OOB, "bins[", ""),
]  # fmt: skip

# Other right ways to write them: none may be called wrong.
RIGHT: list[tuple[str, str, dict]] = [
    ("add", TEXTS["add 2"], {"grid": 2, "block": 64}),
    ("add", TEXTS["add 3"], {"grid": 1}),
    ("transpose", TEXTS["transpose 2"], {}),
    ("transpose", TEXTS["transpose 3"], {"grid": (1, 1), "block": (32, 32)}),
    ("total", TEXTS["total 2"], {"grid": 2}),
    ("total", TEXTS["total 3"], {}),
    ("softmax", TEXTS["softmax 2"], {"grid": 2, "block": (32, 4)}),
    ("product", TEXTS["product 2"], {}),
    ("product", TEXTS["product 3"], {"name": "product<16>"}),
    ("histogram", TEXTS["histogram 2"], {"grid": 24}),
]

# Kernels in many styles, right and wrong: what each must be called.
g = torch.Generator().manual_seed(0)
R = lambda *shape: torch.randn(*shape, generator=g)
Z = F = torch.zeros
T = []


def t(name, grid, block, args, expect, kname=None, shared=0, ends="\n"):
    """Add a kernel: `expect` is a kind of fault, None for a right one, or a function that says whether it is right."""
    T.append((name, TEXTS[name].replace("\n", ends), grid, block, args, expect, kname, shared))


a = R(256)
want = a.sort()[0].clone()
t("bitonic", 1, 256, [a], lambda a=a, w=want: torch.equal(a, w))
xx = R(200)
y = Z(200)
t(
    "conv",
    4,
    64,
    [xx, y, 200],
    lambda y=y: torch.allclose(
        y,
        torch.nn.functional.conv1d(xx[None, None], torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])[None, None], padding=2)[
            0, 0
        ],
        atol=1e-05,
    ),
)
lx = R(6, 512)
ga = R(512)
be = R(512)
y = Z(6, 512)
t(
    "layernorm",
    6,
    128,
    [lx, ga, be, y, 512, 1e-05],
    lambda y=y: torch.allclose(y, torch.nn.functional.layer_norm(lx, (512,), ga, be), atol=0.0001),
)
A = (torch.rand(10, 50, generator=g) < 0.3) * R(10, 50)
px = R(50)
y = Z(10)
csr = [torch.cat([torch.zeros(1), (A != 0).sum(1).cumsum(0)]).int(), A.nonzero()[:, 1].int(), A[A != 0], px]
t("csr", 3, 128, [*csr, y, 10], lambda y=y: torch.allclose(y, A @ px, atol=0.0001))
xx2 = R(300)
o2 = Z(300)
c = torch.zeros(1, dtype=torch.int32)
t(
    "warp aggregated",
    3,
    128,
    [xx2, o2, c, 300],
    lambda o=o2, c=c: (
        c.item() == (xx2 > 0).sum().item() and torch.equal(o[: c.item()].sort()[0], xx2[xx2 > 0].sort()[0])
    ),
)
dx = R(500).double()
ds = Z(1, dtype=torch.float64)
t("double cas", 4, 128, [dx, ds, 500], lambda s=ds: torch.allclose(s, dx.sum()))
hx = R(100).half()
hy = R(100).half()
hw = (2 * hx.float() + hy.float()).half()
t("half2", 1, 64, [hx, hy, 2.0, 50], lambda y=hy, w=hw: torch.equal(y, w))
t("half", 1, 128, [hx, hx.clone(), 100], None)
bx = R(64).bfloat16()
by = Z(64).bfloat16()
t("bf16", 1, 64, [bx, by], lambda y=by: torch.equal(y, bx * 2))
t("namespace", 1, 32, [Z(32)], None, "mine::k")
t("macro kernel", 1, 32, [R(32), Z(32)], None, "twice")
t("default template", 1, 32, [R(32)], None, "k<>")
t("template dynamic", 1, 32, [R(32)], None, "k<float>", 128)
t("no args", 2, 32, [], None)
t("arrays params", 1, 32, [R(32), Z(32), 32], None)
t("consts", 2, 32, [R(100), Z(100), 100], None)
t("std", 1, 32, [R(32)], None)
t("arch", 1, 32, [R(32)], None)
t("structs", 1, 32, [R(32), 1, 32], None)
t("float2 shared", 1, 32, [R(64)], "race")
t(
    "bool/uchar",
    (2, 2),
    (8, 8),
    [
        torch.randint(0, 2, (13, 14), generator=g, dtype=torch.uint8),
        torch.zeros(13, 14, dtype=torch.uint8),
        torch.zeros(13, 14, dtype=torch.bool),
        14,
        13,
    ],
    None,
)
t(
    "uchar shared hist",
    1,
    64,
    [torch.randint(0, 255, (50,), generator=g, dtype=torch.uint8), torch.zeros(4, dtype=torch.int32)],
    None,
)
t("int64 gather", 2, 16, [R(10, 20), torch.randint(0, 10, (7,), generator=g), Z(7, 20), 20, 7], None)
t("syncthreads_or", 1, 64, [torch.arange(64, 0, -1, dtype=torch.int32), 64], None)
t("W loop barrier uneven", 1, 64, [R(100), 100], "divergent barrier|uninitialised")
t("W syncwarp missing", 1, 32, [R(32), Z(1)], "race")
t("syncwarp", 1, (32, 4), [R(128), Z(4)], None)
t("W broadcast", 1, 32, [R(32), Z(32)], "race")
t("W broadcast reversed", 1, 32, [R(32), Z(32)], "race")
t("W lock not released", 1, 32, [R(32)], "endless")
t("lock released", 2, 32, [Z(1)], None)
t("3d", (2, 2, 2), (4, 4, 2), [Z(3, 5, 7), 3, 5, 7], None)
t("W view arg", 1, 9, [R(100)[10:18], Z(100)[50:58]], "out of bounds")
al = R(64)
t("aliased", 1, 64, [al, al], None)
t("W aliased shift", 1, 63, [al[1:], al[:-1]], "race")
t("wb empty", 1, 63, [Z(0), 0], None)
t("divergent shfl subgroup", 1, 32, [R(32)], None)
t("W tail warp", 1, 40, [R(40)], "undefined")
t("tail warp, of which one lane counts", 1, 8, [R(8), Z(1)], None)
t("W ended lanes", 1, 32, [R(32), Z(1), 20], "undefined")
t("W lane outside of the mask", 1, 32, [R(32)], "undefined")
t("match/reduce", 1, 32, [torch.arange(32, dtype=torch.int32)], None)
t("clock", 1, 4, [torch.zeros(4, dtype=torch.int64)], None)
t("goto/dowhile", 1, 7, [Z(31)], None)
t("big launch", 4096, 256, [Z(1 << 20), 1 << 20], None)
t("max threads", 64, 1024, [Z(1024)], None)

t("W sync in one branch only", 1, 64, [R(64)], "divergent barrier")
t("W int overflow index", 1, 64, [R(64), 50000], "out of bounds")
t(
    "W atomicAdd plain read after",
    1,
    64,
    [torch.zeros(1, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)],
    "race",
)
t("atomic return used", 2, 64, [torch.zeros(1, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)], None)
t("W float4 tail", 1, 64, [R(63), Z(63), 63], "out of bounds")
t("W float4 misaligned view", 1, 4, [R(64)[1:17], Z(16)], "misaligned")
t("int for float ok", 1, 4, [Z(4), 3], None)
t("register tile volatile ptr ok", 1, 64, [R(64), Z(64), 64], None, None, (64 + 72) * 4)
t("W dyn partition too small", 1, 64, [R(64), Z(64), 64], "out of bounds", None, (64 + 64) * 4)
t("W shared_mem forgotten", 1, 64, [R(64)], "out of bounds")
t("shared constexpr", 1, 16, [R(20)], None)
t("shared in device fn", 1, 64, [R(64)], None)
t("W shared ptr passed", 1, 64, [R(64)], "out of bounds")
t("W shared far", 1, 64, [R(64)], "out of bounds|wild")
t("W two arrays overflow into next", 1, 64, [R(64)], "out of bounds")
t("W device counter race", 1, 64, [torch.zeros(64, dtype=torch.int32)], "race")
t("rgb", 1, 64, [torch.zeros(60, 3, dtype=torch.uint8), torch.zeros(60, dtype=torch.uint8), 60], None)
t("uchar4", 1, 64, [torch.zeros(60, 4, dtype=torch.uint8), torch.zeros(60, 4, dtype=torch.uint8), 60], None)
t("float3", 1, 64, [R(60, 3), R(60, 3), 0.1, 60], None)
t("long kernels", 1, 64, [R(64), 20000], None)
t("nullptr opt", 1, 64, [None, R(64)], None)
t("extern C block", 1, 16, [R(64)], None)
t("static global", 1, 16, [R(64)], None)
t("proto then def", 1, 16, [R(64), 3], None)
t("comments", 1, 16, [R(64), 3], None)
t("unicode comment", 1, 16, [R(64)], None)
t("crlf", 1, 16, [R(64)], None, ends="\r\n")
t("W line number crlf", 1, 65, [R(64)], "out of bounds", ends="\r\n")
t("syncthreads in both", 1, 64, [R(64), 1], None)
t("sync in uniform loop", 2, 64, [R(128), 10], "race")
t("W local array", 1, 1, [Z(8), 4], "out of bounds")
t("W local matrix", 1, 4, [Z(8)], "out of bounds")
t("flattened rows", 1, 32, [Z(32)], None)

# text, a phrase of what is said of it, arguments; two blocks of 64 threads
HOSTILE = []
for head, text in read("hostile.cu"):
    phrase, _, given = head.partition(" | ")
    HOSTILE.append((text, phrase, list(eval(f"({given or 'F(64)'},)", {"torch": torch, "F": F}))))
