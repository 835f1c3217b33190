"""CUDA kernels as data: six with ways to break them and other right ways to write them; many styles; hostile ones."""
# ruff: noqa: E501, E731

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch


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
    "add": Base(
        """__global__ void add(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = x[i] + y[i];
}""",
        4, 256, _add, lambda a: _close(a[2], a[0] + a[1]),
    ),
    "transpose": Base(
        """#define TILE 16
__global__ void transpose(const float* in, float* out, int rows, int cols) {
  __shared__ float tile[TILE][TILE + 1];
  int c = blockIdx.x * TILE + threadIdx.x;
  int r = blockIdx.y * TILE + threadIdx.y;
  if (r < rows && c < cols)
    tile[threadIdx.y][threadIdx.x] = in[r * cols + c];
  __syncthreads();
  c = blockIdx.y * TILE + threadIdx.x;
  r = blockIdx.x * TILE + threadIdx.y;
  if (r < cols && c < rows)
    out[r * rows + c] = tile[threadIdx.x][threadIdx.y];
}""",
        (3, 4), (16, 16), _transpose, lambda a: _close(a[1], a[0].t()),
    ),
    "total": Base(
        """__global__ void total(const float* x, float* out, int n) {
  __shared__ float part[256];
  int t = threadIdx.x;
  int i = blockIdx.x * blockDim.x + t;
  part[t] = i < n ? x[i] : 0.0f;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (t < step)
      part[t] += part[t + step];
    __syncthreads();
  }
  if (t == 0)
    out[blockIdx.x] = part[0];
}""",
        4, 256, _total, lambda a: _close(a[1].sum(), a[0].sum()),
    ),
    "softmax": Base(
        """__global__ void softmax(const float* x, float* y, int rows, int cols) {
  __shared__ float part[64];
  int t = threadIdx.x;
  const float* row = x + blockIdx.x * cols;
  float most = -INFINITY;
  for (int c = t; c < cols; c += blockDim.x)
    most = fmaxf(most, row[c]);
  part[t] = most;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step >>= 1) {
    if (t < step)
      part[t] = fmaxf(part[t], part[t + step]);
    __syncthreads();
  }
  most = part[0];
  __syncthreads();
  float sum = 0;
  for (int c = t; c < cols; c += blockDim.x)
    sum += expf(row[c] - most);
  part[t] = sum;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step >>= 1) {
    if (t < step)
      part[t] += part[t + step];
    __syncthreads();
  }
  for (int c = t; c < cols; c += blockDim.x)
    y[blockIdx.x * cols + c] = expf(row[c] - most) / part[0];
}""",
        5, 64, _softmax, lambda a: _close(a[1], a[0].softmax(1)),
    ),
    "product": Base(
        """#define TILE 16
__global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ float a[TILE][TILE], b[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y;
  int col = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < K; k += TILE) {
    int ka = k + threadIdx.x, kb = k + threadIdx.y;
    a[threadIdx.y][threadIdx.x] = row < M && ka < K ? A[row * K + ka] : 0;
    b[threadIdx.y][threadIdx.x] = kb < K && col < N ? B[kb * N + col] : 0;
    __syncthreads();  // loaded
    for (int j = 0; j < TILE; j++)
      sum += a[threadIdx.y][j] * b[j][threadIdx.x];
    __syncthreads();  // used
  }
  if (row < M && col < N)
    C[row * N + col] = sum;
}""",
        (3, 2), (16, 16), _product, lambda a: _close(a[2], a[0] @ a[1]),
    ),
    "histogram": Base(
        """__global__ void histogram(const int* x, int* bins, int n) {
  __shared__ int own[16];
  if (threadIdx.x < 16)
    own[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    atomicAdd(&own[x[i]], 1);
  __syncthreads();
  if (threadIdx.x < 16)
    atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}""",
        4, 128, _histogram, lambda a: bool((a[1] == torch.bincount(a[0], minlength=16)).all()),
    ),
}  # fmt: skip

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
    ("add", """__global__ void add(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = x[i] + y[i];
}""", {"grid": 2, "block": 64}),
    ("add", """extern "C" __global__ void __launch_bounds__(256) add(const float4* x, const float4* y, float4* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 4) {
    float4 a = x[i], b = y[i];
    out[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }
}""", {"grid": 1}),
    ("transpose", """__global__ void transpose(const float* in, float* out, int rows, int cols) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (c < cols && r < rows) out[c * rows + r] = in[r * cols + c];
}""", {}),
    ("transpose", """__global__ void transpose(const float* in, float* out, int rows, int cols) {
  __shared__ float tile[1024];
  for (int ty = blockIdx.y; ty * 32 < rows; ty += gridDim.y)
    for (int tx = blockIdx.x; tx * 32 < cols; tx += gridDim.x) {
      int r = ty * 32 + threadIdx.y, c = tx * 32 + threadIdx.x;
      if (r < rows && c < cols) tile[threadIdx.y * 32 + (threadIdx.x ^ threadIdx.y)] = in[r * cols + c];
      __syncthreads();
      r = ty * 32 + threadIdx.x; c = tx * 32 + threadIdx.y;
      if (r < rows && c < cols) out[c * rows + r] = tile[threadIdx.x * 32 + (threadIdx.y ^ threadIdx.x)];
      __syncthreads();
    }
}""", {"grid": (1, 1), "block": (32, 32)}),
    ("total", """__global__ void total(const float* x, float* out, int n) {
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) sum += x[i];
  for (int d = warpSize / 2; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffff, sum, d);
  __shared__ float warps[32];
  int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
  if (lane == 0) warps[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = lane < blockDim.x / warpSize ? warps[lane] : 0;
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, d);
    if (lane == 0) out[blockIdx.x] = sum;
  }
}""", {"grid": 2}),
    ("total", """__device__ unsigned arrived = 0;
__global__ void total(const float* x, float* out, int n) {
  __shared__ float part[256]; __shared__ bool last;
  int t = threadIdx.x; float sum = 0;
  for (int i = blockIdx.x * 256 + t; i < n; i += 256 * gridDim.x) sum += x[i];
  part[t] = sum; __syncthreads();
  for (int s = 128; s; s /= 2) { if (t < s) part[t] += part[t + s]; __syncthreads(); }
  if (t == 0) {
    out[blockIdx.x] = part[0];
    __threadfence();
    last = atomicInc(&arrived, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t == 0) {
    float all = 0;
    for (int b = 0; b < gridDim.x; b++) { all += out[b]; out[b] = 0; }
    out[0] = all;
  }
}""", {}),
    ("softmax", """__global__ void softmax(const float* x, float* y, int rows, int cols) {
  int row = blockIdx.x * blockDim.y + threadIdx.y;  // a warp each row
  if (row >= rows) return;
  x += row * cols; y += row * cols;
  float most = -INFINITY, sum = 0;
  for (int c = threadIdx.x; c < cols; c += 32) most = max(most, x[c]);
  for (int d = 16; d; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
  for (int c = threadIdx.x; c < cols; c += 32) sum += __expf(x[c] - most);
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  for (int c = threadIdx.x; c < cols; c += 32) y[c] = __fdividef(__expf(x[c] - most), sum);
}""", {"grid": 2, "block": (32, 4)}),
    ("product", """__global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
  int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= M || col >= N) return;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum = fmaf(A[row * K + k], B[k * N + col], sum);
  C[row * N + col] = sum;
}""", {}),
    ("product", """template <int T> __global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ float a[2][T][T + 1], b[2][T][T + 1];  // two buffers: one barrier a tile
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * T + y, col = blockIdx.x * T + x; float sum = 0;
  for (int k = 0, turn = 0; k < K; k += T, turn ^= 1) {
    a[turn][y][x] = row < M && k + x < K ? A[row * K + k + x] : 0;
    b[turn][y][x] = col < N && k + y < K ? B[(k + y) * N + col] : 0;
    __syncthreads();
    for (int j = 0; j < T; j++) sum += a[turn][y][j] * b[turn][j][x];
  }
  if (row < M && col < N) C[row * N + col] = sum;
}""", {"name": "product<16>"}),
    ("histogram", """__global__ void histogram(const int* x, int* bins, int n) {
  __shared__ int own[16]; __shared__ int lock;
  if (threadIdx.x == 0) { lock = 0; memset(own, 0, sizeof own); }
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    bool done = false;
    while (!done) if (atomicCAS(&lock, 0, 1) == 0) { atomicAdd(&own[x[i]], 1); __threadfence_block(); atomicExch(&lock, 0); done = true; }
  }
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}""", {"grid": 24}),
]  # fmt: skip

# Kernels in many styles, right and wrong: what each must be called.
g = torch.Generator().manual_seed(0)
R = lambda *shape: torch.randn(*shape, generator=g)
Z = F = torch.zeros
T = []


def t(name, src, grid, block, args, expect, kname=None, shared=0):
    """Add a kernel: `expect` is a kind of fault, None for a right one, or a function that says whether it is right."""
    T.append((name, src, grid, block, args, expect, kname, shared))


BIT = """__global__ void bitonic(float* d) { __shared__ float s[256]; unsigned t = threadIdx.x; s[t] = d[t]; __syncthreads();
 for (unsigned k = 2; k <= blockDim.x; k *= 2) for (unsigned j = k / 2; j > 0; j /= 2) { unsigned p = t ^ j;
   if (p > t) { bool up = (t & k) == 0; if ((s[t] > s[p]) == up) { float v = s[t]; s[t] = s[p]; s[p] = v; } } __syncthreads(); }
 d[t] = s[t]; }"""
a = R(256)
want = a.sort()[0].clone()
t("bitonic", BIT, 1, 256, [a], lambda a=a, w=want: torch.equal(a, w))
CONV = """#define RAD 2
__constant__ float w[5] = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
__global__ void conv(const float* x, float* y, int n) { __shared__ float s[64 + 2 * RAD];
 int g = blockIdx.x * 64 + threadIdx.x, l = threadIdx.x + RAD;
 s[l] = g < n ? x[g] : 0;
 if (threadIdx.x < RAD) { s[l - RAD] = g >= RAD ? x[g - RAD] : 0; s[l + 64] = g + 64 < n ? x[g + 64] : 0; }
 __syncthreads(); if (g >= n) return; float v = 0; for (int k = -RAD; k <= RAD; k++) v += w[k + RAD] * s[l + k]; y[g] = v; }"""
xx = R(200)
y = Z(200)
t(
    "conv",
    CONV,
    4,
    64,
    [xx, y, 200],
    lambda y=y: torch.allclose(
        y,
        torch.nn.functional.conv1d(xx[None, None], torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])[None, None], padding=2)[
            0, 0
        ],
        atol=1e-5,
    ),
)
LN = """template <typename T> __inline__ __device__ T block_sum(T v) { static __shared__ T s[32]; int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
 for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o, 32); if (lane == 0) s[w] = v; __syncthreads();
 v = (threadIdx.x < (blockDim.x >> 5)) ? s[lane] : (T)0.0f; if (w == 0) for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o, 32); return v; }
__global__ void layernorm(const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta, float* __restrict__ y, int d, float eps) {
 __shared__ float s_mean, s_var; const float4* row = (const float4*)(x + (size_t)blockIdx.x * d); float sum = 0;
 for (int i = threadIdx.x; i < d / 4; i += blockDim.x) { float4 v = row[i]; sum += v.x + v.y + v.z + v.w; }
 sum = block_sum<float>(sum); if (threadIdx.x == 0) s_mean = sum / d; __syncthreads();
 float var = 0; for (int i = threadIdx.x; i < d / 4; i += blockDim.x) { float4 v = row[i]; v.x -= s_mean; v.y -= s_mean; v.z -= s_mean; v.w -= s_mean; var += v.x*v.x + v.y*v.y + v.z*v.z + v.w*v.w; }
 var = block_sum<float>(var); if (threadIdx.x == 0) s_var = rsqrtf(var / d + eps); __syncthreads();
 for (int i = threadIdx.x; i < d; i += blockDim.x) y[blockIdx.x * d + i] = (x[blockIdx.x * d + i] - s_mean) * s_var * __ldg(&gamma[i]) + __ldg(&beta[i]); }"""
lx = R(6, 512)
ga = R(512)
be = R(512)
y = Z(6, 512)
t(
    "layernorm",
    LN,
    6,
    128,
    [lx, ga, be, y, 512, 1e-5],
    lambda y=y: torch.allclose(y, torch.nn.functional.layer_norm(lx, (512,), ga, be), atol=1e-4),
)
CSR = """__global__ void spmv(const int* ptr, const int* col, const float* val, const float* x, float* y, int rows) {
 int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31; if (row >= rows) return;
 float s = 0; for (int j = ptr[row] + lane; j < ptr[row + 1]; j += 32) s += val[j] * x[col[j]];
 for (int o = 16; o; o >>= 1) s += __shfl_down_sync(0xffffffff, s, o); if (!lane) y[row] = s; }"""
A = (torch.rand(10, 50, generator=g) < 0.3) * R(10, 50)
px = R(50)
y = Z(10)
csr = [torch.cat([torch.zeros(1), (A != 0).sum(1).cumsum(0)]).int(), A.nonzero()[:, 1].int(), A[A != 0], px]
t("csr", CSR, 3, 128, [*csr, y, 10], lambda y=y: torch.allclose(y, A @ px, atol=1e-4))
AGG = """__device__ int agg(int* c) { unsigned m = __activemask(); int leader = __ffs(m) - 1, lane = threadIdx.x & 31, r = 0; if (lane == leader) r = atomicAdd(c, __popc(m)); r = __shfl_sync(m, r, leader); return r + __popc(m & ((1u << lane) - 1)); }
__global__ void filter(const float* x, float* out, int* count, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n && x[i] > 0) out[agg(count)] = x[i]; }"""
xx2 = R(300)
o2 = Z(300)
c = torch.zeros(1, dtype=torch.int32)
t(
    "warp aggregated",
    AGG,
    3,
    128,
    [xx2, o2, c, 300],
    lambda o=o2, c=c: (
        c.item() == (xx2 > 0).sum().item() and torch.equal(o[: c.item()].sort()[0], xx2[xx2 > 0].sort()[0])
    ),
)
DA = """__device__ double atomicAddD(double* address, double val) { unsigned long long int* a = (unsigned long long int*)address; unsigned long long int old = *a, assumed;
 do { assumed = old; old = atomicCAS(a, assumed, __double_as_longlong(val + __longlong_as_double(assumed))); } while (assumed != old); return __longlong_as_double(old); }
__global__ void sum(const double* x, double* s, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) atomicAddD(s, x[i]); }"""
dx = R(500).double()
ds = Z(1, dtype=torch.float64)
t("double cas", DA, 4, 128, [dx, ds, 500], lambda s=ds: torch.allclose(s, dx.sum()))
HALF = """#include <cuda_fp16.h>
__global__ void axpy(const __half2* x, __half2* y, __half a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = __hfma2(__half2half2(a), x[i], y[i]); }"""
hx = R(100).half()
hy = R(100).half()
hw = (2 * hx.float() + hy.float()).half()
t("half2", HALF, 1, 64, [hx, hy, 2.0, 50], lambda y=hy, w=hw: torch.equal(y, w))
t(
    "half",
    """#include "cuda_fp16.h"
__global__ void f(const half* x, half* y, int n) { int i = threadIdx.x; if (i < n) { half v = x[i]; y[i] = v * v + __float2half(0.5f) > half(1.0f) ? hexp(v) : __hadd(v, __float2half(1)); float q = v; y[i] += half(q) - v; } }""",
    1,
    128,
    [hx, hx.clone(), 100],
    None,
)
bx = R(64).bfloat16()
by = Z(64).bfloat16()
t(
    "bf16",
    "#include <cuda_bf16.h>\n__global__ void f(const __nv_bfloat16* x, __nv_bfloat16* y) { int i = threadIdx.x; y[i] = __float2bfloat16(__bfloat162float(x[i]) * 2.f); }",
    1,
    64,
    [bx, by],
    lambda y=by: torch.equal(y, bx * 2),
)
t(
    "namespace",
    "namespace mine { __global__ void k(float* x) { x[threadIdx.x] = 1; } }",
    1,
    32,
    [Z(32)],
    None,
    "mine::k",
)
t(
    "macro kernel",
    "#define DEF(name, op) __global__ void name(const float* x, float* y) { int i = threadIdx.x; y[i] = x[i] op 2; }\nDEF(twice, *)\nDEF(half_of, /)\n",
    1,
    32,
    [R(32), Z(32)],
    None,
    "twice",
)
t(
    "default template",
    "template <int B = 32, typename T = float> __global__ void k(T* x) { __shared__ T s[B]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[B - 1 - threadIdx.x]; }",
    1,
    32,
    [R(32)],
    None,
    "k<>",
)
t(
    "template dynamic",
    "template <typename T> __global__ void k(T* x) { extern __shared__ __align__(sizeof(T)) unsigned char raw[]; T* s = reinterpret_cast<T*>(raw); s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[31 - threadIdx.x]; }",
    1,
    32,
    [R(32)],
    None,
    "k<float>",
    128,
)
t("no args", "__device__ int counter;\n__global__ void k() { atomicAdd(&counter, 1); }", 2, 32, [], None)
t(
    "arrays params",
    "__global__ void k(const float x[], float y[32], const int n) { y[threadIdx.x] = x[n - 1 - threadIdx.x]; }",
    1,
    32,
    [R(32), Z(32), 32],
    None,
)
t(
    "consts",
    "__global__ void __launch_bounds__(256, 2) k(float const * const __restrict__ x, float *__restrict__ y, size_t n) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) y[i] = std::min(x[i], 0.f) + max(1, 2u) + ::fabsf(x[i]); }\n#include <algorithm>",
    2,
    32,
    [R(100), Z(100), 100],
    None,
)
t(
    "std",
    "#include <algorithm>\nusing namespace std;\n__global__ void k(float* x) { int i = threadIdx.x; x[i] = min(x[i], 0.f) + max(1, i) + abs(x[i]) + std::max(x[i], 2.f) + min(i, 3u) + pow(x[i], 2.f) + floor(x[i]) + sqrt(fabs(x[i])) + __sinf(x[i]) + __powf(2.f, x[i]) + exp2f(x[i]) + erff(x[i]) + normcdff(0.f); }",
    1,
    32,
    [R(32)],
    None,
)
t(
    "arch",
    "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700\n#define OK 1\n#else\n#error no\n#endif\n__global__ void k(float* x) { x[threadIdx.x] = OK; }",
    1,
    32,
    [R(32)],
    None,
)
t(
    "structs",
    """struct Vec { float a, b; __host__ __device__ Vec(float x = 0, float y = 0) : a(x), b(y) {} __device__ Vec operator+(const Vec& o) const { return Vec(a + o.a, b + o.b); } };
enum Op { PLUS, MINUS };
struct Pair { float v; int i; };
__device__ __host__ inline void swap_(float& a, float& b) { float t = a; a = b; b = t; }
__global__ void k(float* x, int op, int n) { __shared__ Pair s[32]; static constexpr int W = 32; int i = threadIdx.x; s[i].v = x[i]; s[i].i = i; __syncthreads();
 Pair best = s[0]; for (int j = 1; j < W; ++j) if (s[j].v > best.v) best = s[j];
 Vec v = Vec(x[i], 1) + Vec(1, 2); switch ((Op)op) { case PLUS: x[i] = v.a + v.b; break; default: x[i] = best.v + best.i; }
 auto f = [&](float q) { return q * v.a; }; float a = f(1), b = f(2); swap_(a, b); x[i] += a - b; float loc[4]; for (int j = 0; j < 4; j++) loc[(j + i) % 4] = j; x[i] += loc[i % 4]; }""",
    1,
    32,
    [R(32), 1, 32],
    None,
)
t(
    "float2 shared",
    "__global__ void k(float2* x) { __shared__ float2 s[8][5]; int i = threadIdx.x; if (i < 32) { s[i / 4][i % 4] = x[i]; } __syncthreads(); float2 v = s[7 - i / 4][i % 4]; v.x += 1; s[i / 4][i % 4].y = 1; x[i] = v; }",
    1,
    32,
    [R(64)],
    "race",
)
t(
    "bool/uchar",
    "__global__ void life(const unsigned char* a, unsigned char* b, bool* alive, int w, int h) { int x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y; if (x >= w || y >= h) return; int n = 0; for (int dy = -1; dy <= 1; dy++) for (int dx = -1; dx <= 1; dx++) if (dx || dy) n += a[(y + dy + h) % h * w + (x + dx + w) % w]; unsigned char c = a[y * w + x]; b[y * w + x] = n == 3 || (c && n == 2); alive[y * w + x] = b[y * w + x]; }",
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
    "__global__ void k(const unsigned char* x, unsigned* out) { __shared__ unsigned char s[64 * 4]; for (int i = 0; i < 4; i++) s[threadIdx.x * 4 + i] = 0; for (int i = 0; i < 50; i++) s[threadIdx.x * 4 + (x[i] & 3)]++; __syncthreads(); if (threadIdx.x < 4) { unsigned n = 0; for (int i = 0; i < 64; i++) n += s[i * 4 + threadIdx.x]; out[threadIdx.x] = n; } }",
    1,
    64,
    [torch.randint(0, 255, (50,), generator=g, dtype=torch.uint8), torch.zeros(4, dtype=torch.int32)],
    None,
)
t(
    "int64 gather",
    "__global__ void k(const float* w, const long long* idx, float* out, int d, long n) { for (long i = blockIdx.x; i < n; i += gridDim.x) for (int c = threadIdx.x; c < d; c += blockDim.x) out[i * d + c] = w[idx[i] * d + c]; }",
    2,
    16,
    [R(10, 20), torch.randint(0, 10, (7,), generator=g), Z(7, 20), 20, 7],
    None,
)
t(
    "syncthreads_or",
    "__global__ void k(int* x, int n) { int i = threadIdx.x; __shared__ int s[64]; s[i] = x[i]; __syncthreads(); int more; do { int v = s[i]; int left = i ? s[i - 1] : 0; __syncthreads(); if (left > v) s[i] = left; more = __syncthreads_or(left > v); } while (more); x[i] = s[i] + __syncthreads_count(i < 5) + __syncthreads_and(1); }",
    1,
    64,
    [torch.arange(64, 0, -1, dtype=torch.int32), 64],
    None,
)
t(
    "W loop barrier uneven",
    "__global__ void k(float* x, int n) { __shared__ float s[64]; for (int i = threadIdx.x; i < n; i += 64) { s[threadIdx.x] = x[i]; __syncthreads(); x[i] = s[63 - threadIdx.x]; __syncthreads(); } }",
    1,
    64,
    [R(100), 100],
    "divergent barrier|uninitialised",
)
t(
    "W syncwarp missing",
    "__global__ void k(const float* x, float* y) { __shared__ float s[32]; int i = threadIdx.x; s[i] = x[i]; __syncwarp(); for (int d = 16; d; d /= 2) { if (i < d) s[i] += s[i + d]; } if (!i) *y = s[0]; }",
    1,
    32,
    [R(32), Z(1)],
    "race",
)
t(
    "syncwarp",
    "__global__ void k(const float* x, float* y) { __shared__ float s[4][32]; int i = threadIdx.x, w = threadIdx.y; s[w][i] = x[w * 32 + i]; __syncwarp(); for (int d = 16; d; d /= 2) { if (i < d) s[w][i] += s[w][i + d]; __syncwarp(); } if (!i) y[w] = s[w][0]; }",
    1,
    (32, 4),
    [R(128), Z(4)],
    None,
)
t(
    "W broadcast",
    "__global__ void k(const float* x, float* y) { __shared__ float first; if (threadIdx.x == 0) first = x[0]; y[threadIdx.x] = first; }",
    1,
    32,
    [R(32), Z(32)],
    "race",
)
t(
    "W broadcast reversed",
    "__global__ void k(const float* x, float* y) { __shared__ float last; if (threadIdx.x == 31) last = x[0]; y[threadIdx.x] = last; }",
    1,
    32,
    [R(32), Z(32)],
    "race",
)
t(
    "W lock not released",
    "__device__ int lock;\n__global__ void k(float* x) { while (atomicCAS(&lock, 0, 1)); x[0] += 1; }",
    1,
    32,
    [R(32)],
    "endless",
)
t(
    "lock released",
    "__device__ int lock;\n__global__ void k(float* x) { bool done = false; while (!done) { if (atomicCAS(&lock, 0, 1) == 0) { __threadfence(); x[0] += 1; __threadfence(); atomicExch(&lock, 0); done = true; } } }",
    2,
    32,
    [Z(1)],
    None,
)
t(
    "3d",
    "__global__ void k(float* x, int a, int b, int c) { int i = threadIdx.x + blockIdx.x * blockDim.x, j = threadIdx.y + blockIdx.y * blockDim.y, l = threadIdx.z + blockIdx.z * blockDim.z; if (i < c && j < b && l < a) x[(l * b + j) * c + i] += i + 10 * j + 100 * l; }",
    (2, 2, 2),
    (4, 4, 2),
    [Z(3, 5, 7), 3, 5, 7],
    None,
)
t(
    "W view arg",
    "__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }",
    1,
    9,
    [R(100)[10:18], Z(100)[50:58]],
    "out of bounds",
)
al = R(64)
t(
    "aliased",
    "__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * 2; }",
    1,
    64,
    [al, al],
    None,
)
t(
    "W aliased shift",
    "__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * 2; }",
    1,
    63,
    [al[1:], al[:-1]],
    "race",
)
t("wb empty", "__global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }", 1, 63, [Z(0), 0], None)
t(
    "divergent shfl subgroup",
    "__global__ void k(float* x) { int i = threadIdx.x; float v = x[i]; if (i < 16) { v += __shfl_xor_sync(0x0000ffff, v, 1); } else { v -= __shfl_xor_sync(0xffff0000, v, 1); } x[i] = v; }",
    1,
    32,
    [R(32)],
    None,
)
t(
    "W tail warp",
    "__global__ void k(float* x) { float v = x[threadIdx.x]; v += __shfl_down_sync(0xffffffff, v, 1); x[threadIdx.x] = v; }",
    1,
    40,
    [R(40)],
    "undefined",
)
t(
    "tail warp, of which one lane counts",
    "__global__ void k(float* x, float* y) { float v = x[threadIdx.x]; for (int d = 4; d; d /= 2) v += __shfl_down_sync(0xffffffff, v, d); if (threadIdx.x == 0) *y = v; }",
    1,
    8,
    [R(8), Z(1)],
    None,
)
t(
    "W ended lanes",
    "__global__ void k(const float* x, float* y, int n) { int i = threadIdx.x; if (i >= n) return; float v = x[i]; for (int d = 16; d; d /= 2) v += __shfl_down_sync(0xffffffff, v, d); if (i == 0) *y = v; }",
    1,
    32,
    [R(32), Z(1), 20],
    "undefined",
)
t(
    "W lane outside of the mask",
    "__global__ void k(float* x) { int i = threadIdx.x; float v = x[i]; if (i < 16) { v += __shfl_down_sync(0x0000ffff, v, 8); x[i] = v; } }",
    1,
    32,
    [R(32)],
    "undefined",
)
t(
    "match/reduce",
    "__global__ void k(int* x) { unsigned m = __match_any_sync(~0u, x[threadIdx.x] & 3); int s = __reduce_add_sync(~0u, 1); x[threadIdx.x] = __popc(m) + s + __any_sync(~0u, x[threadIdx.x] > 3) + __all_sync(~0u, 1); }",
    1,
    32,
    [torch.arange(32, dtype=torch.int32)],
    None,
)
t(
    "clock",
    "__global__ void k(long long* x) { long long a = clock64(); x[threadIdx.x] = clock64() - a; clock_t b = clock(); }",
    1,
    4,
    [torch.zeros(4, dtype=torch.int64)],
    None,
)
t(
    "goto/dowhile",
    "__global__ void k(float* x) { int i = threadIdx.x; do { if (i > 30) goto out; x[i] += 1; i += 7; } while (true); out: return; }",
    1,
    7,
    [Z(31)],
    None,
)
t(
    "big launch",
    "__global__ void k(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = i; }",
    4096,
    256,
    [Z(1 << 20), 1 << 20],
    None,
)
t(
    "max threads",
    "__global__ void k(float* x) { __shared__ float s[1024]; s[threadIdx.x] = 1; __syncthreads(); x[threadIdx.x] = s[1023 - threadIdx.x]; }",
    64,
    1024,
    [Z(1024)],
    None,
)

t(
    "W sync in one branch only",
    "__global__ void k(float* x) { if (threadIdx.x & 1) { __syncthreads(); x[threadIdx.x] = 1; } else x[threadIdx.x] = 2; __syncthreads(); x[threadIdx.x] += 1; }",
    1,
    64,
    [R(64)],
    "divergent barrier",
)
t(
    "W int overflow index",
    "__global__ void k(float* x, int n) { int i = threadIdx.x * n * n; x[i] = 1; }",
    1,
    64,
    [R(64), 50000],
    "out of bounds",
)
t(
    "W atomicAdd plain read after",
    "__global__ void k(int* x, int* y) { atomicAdd(x, 1); y[threadIdx.x] = *x; }",
    1,
    64,
    [torch.zeros(1, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)],
    "race",
)
t(
    "atomic return used",
    "__global__ void k(int* x, int* y) { int p = atomicAdd(x, 1); y[p] = threadIdx.x; }",
    2,
    64,
    [torch.zeros(1, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)],
    None,
)
t(
    "W float4 tail",
    "__global__ void k(const float4* x, float4* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i * 4 < n) y[i] = x[i]; }",
    1,
    64,
    [R(63), Z(63), 63],
    "out of bounds",
)
t(
    "W float4 misaligned view",
    "__global__ void k(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }",
    1,
    4,
    [R(64)[1:17], Z(16)],
    "misaligned",
)
t("int for float ok", "__global__ void k(float* x, float a) { x[0] = a; }", 1, 4, [Z(4), 3], None)
t(
    "register tile volatile ptr ok",
    "__global__ void k(const float* __restrict__ A, float* __restrict__ C, int n) { extern __shared__ float sm[]; float* a = sm; float (*b)[9] = (float (*)[9])(sm + 64); int t = threadIdx.x; a[t] = A[t]; b[t / 8][t % 8] = A[t]; __syncthreads(); C[t] = a[63 - t] + b[t % 8][t / 8]; }",
    1,
    64,
    [R(64), Z(64), 64],
    None,
    None,
    (64 + 72) * 4,
)
t(
    "W dyn partition too small",
    "__global__ void k(const float* __restrict__ A, float* __restrict__ C, int n) { extern __shared__ float sm[]; float* a = sm; float (*b)[9] = (float (*)[9])(sm + 64); int t = threadIdx.x; a[t] = A[t]; b[t / 8][t % 8] = A[t]; __syncthreads(); C[t] = a[63 - t] + b[t % 8][t / 8]; }",
    1,
    64,
    [R(64), Z(64), 64],
    "out of bounds",
    None,
    (64 + 64) * 4,
)
t(
    "W shared_mem forgotten",
    "__global__ void k(float* x) { extern __shared__ float s[]; s[threadIdx.x] = x[threadIdx.x]; }",
    1,
    64,
    [R(64)],
    "out of bounds",
)
t(
    "shared constexpr",
    "constexpr int N = 8; template <int M> struct S { static constexpr int v = M * 2; };\n__global__ void k(float* x) { __shared__ float s[S<N>::v + 1]; s[threadIdx.x] = 1; __syncthreads(); x[threadIdx.x] = s[15 - threadIdx.x]; }",
    1,
    16,
    [R(20)],
    None,
)
t(
    "shared in device fn",
    "__device__ float share(float v) { __shared__ float s[64]; s[threadIdx.x] = v; __syncthreads(); float r = s[63 - threadIdx.x]; __syncthreads(); return r; }\n__global__ void k(float* x) { x[threadIdx.x] = share(share(x[threadIdx.x])); }",
    1,
    64,
    [R(64)],
    None,
)
t(
    "W shared ptr passed",
    "__device__ void fill(float* s, int n) { for (int i = threadIdx.x; i <= n; i += blockDim.x) s[i] = i; }\n__global__ void k(float* x) { __shared__ float s[100]; fill(s, 100); __syncthreads(); x[threadIdx.x] = s[99 - threadIdx.x]; }",
    1,
    64,
    [R(64)],
    "out of bounds",
)
t(
    "W shared far",
    "__global__ void k(float* x) { __shared__ float s[64]; int i = threadIdx.x; s[i * 100000] = x[i]; }",
    1,
    64,
    [R(64)],
    "out of bounds|wild",
)
t(
    "W two arrays overflow into next",
    "__global__ void k(float* x) { __shared__ float a[64]; __shared__ float b[64]; int i = threadIdx.x; b[i] = 0; a[i + 1] = x[i]; __syncthreads(); x[i] = a[i] + b[i]; }",
    1,
    64,
    [R(64)],
    "out of bounds",
)
t(
    "W device counter race",
    "__device__ int counter = 0;\n__global__ void k(int* x) { counter++; x[threadIdx.x] = counter; }",
    1,
    64,
    [torch.zeros(64, dtype=torch.int32)],
    "race",
)
t(
    "rgb",
    "__global__ void k(const uchar3* in, unsigned char* gray, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) { uchar3 p = in[i]; gray[i] = 0.3f * p.x + 0.59f * p.y + 0.11f * p.z; } }",
    1,
    64,
    [torch.zeros(60, 3, dtype=torch.uint8), torch.zeros(60, dtype=torch.uint8), 60],
    None,
)
t(
    "uchar4",
    "__global__ void k(const uchar4* in, uchar4* out, int n) { int i = threadIdx.x; if (i < n) { uchar4 p = in[i]; p.x = 255 - p.x; out[i] = make_uchar4(p.x, p.y, p.z, 0); } }",
    1,
    64,
    [torch.zeros(60, 4, dtype=torch.uint8), torch.zeros(60, 4, dtype=torch.uint8), 60],
    None,
)
t(
    "float3",
    "__global__ void k(float3* p, float3* v, float dt, int n) { int i = threadIdx.x; if (i < n) { float3 a = p[i], b = v[i]; a.x += b.x * dt; a.y += b.y * dt; a.z += b.z * dt; p[i] = a; v[i] = make_float3(0, 0, 0); } }",
    1,
    64,
    [R(60, 3), R(60, 3), 0.1, 60],
    None,
)
t(
    "long kernels",
    "__global__ void k(float* x, long n) { for (long i = 0; i < n; i++) x[threadIdx.x] = x[threadIdx.x] * 0.5f + 1; }",
    1,
    64,
    [R(64), 20000],
    None,
)
t(
    "nullptr opt",
    "__global__ void k(const float* b, float* x) { x[threadIdx.x] = b ? b[threadIdx.x] : 0; }",
    1,
    64,
    [None, R(64)],
    None,
)
t("extern C block", 'extern "C" {\n__global__ void k(float* x) { x[threadIdx.x] = 1; }\n}', 1, 16, [R(64)], None)
t("static global", "static __global__ void k(float* x) { x[threadIdx.x] = 1; }", 1, 16, [R(64)], None)
t(
    "proto then def",
    "__global__ void k(float* x, int n);\n__device__ float f(float v);\n__global__ void k(float* x, int n) { x[threadIdx.x] = f(n); }\n__device__ float f(float v) { return v * 2; }",
    1,
    16,
    [R(64), 3],
    None,
)
t(
    "comments",
    '/* __global__ void fake(int* a) { } */\n// __global__ void other() {}\n__global__ void k(float* x /* the array */, // data\n int n) { x[threadIdx.x] = n; const char* s = "<<<"; }',
    1,
    16,
    [R(64), 3],
    None,
)
t(
    "unicode comment",
    "// größer als π, 你好\n__global__ void k(float* x) { x[threadIdx.x] = 1; /* é */ }",
    1,
    16,
    [R(64)],
    None,
)
t("crlf", "__global__ void k(float* x) {\r\n  x[threadIdx.x] = 1;\r\n}\r\n", 1, 16, [R(64)], None)
t(
    "W line number crlf",
    "__global__ void k(float* x) {\r\n\r\n  x[threadIdx.x] = 1;\r\n}\r\n",
    1,
    65,
    [R(64)],
    "out of bounds",
)
t(
    "syncthreads in both",
    "__global__ void k(float* x, int f) { if (f) { x[threadIdx.x] = 1; __syncthreads(); } else { __syncthreads(); } x[threadIdx.x] += 1; }",
    1,
    64,
    [R(64), 1],
    None,
)
t(
    "sync in uniform loop",
    "__global__ void k(float* x, int f) { for (int i = 0; i < f; i++) { __syncthreads(); if (i == 3) break; } x[threadIdx.x] += 1; }",
    2,
    64,
    [R(128), 10],
    "race",
)
t(
    "W local array",
    "__global__ void k(float* x, int n) { float a[4]; for (int i = 0; i <= n; i++)\n a[i] = x[i]; x[4 + threadIdx.x] = a[n & 3]; }",
    1,
    1,
    [Z(8), 4],
    "out of bounds",
)
t(
    "W local matrix",
    "__global__ void k(float* x) { float acc[4][4] = {}; for (int i = 0; i < 4; i++) for (int j = 0; j <= 4; j++) acc[i][j] += x[i]; x[threadIdx.x + 4] = acc[threadIdx.x][1]; }",
    1,
    4,
    [Z(8)],
    "out of bounds",
)
t(
    "flattened rows",
    "__global__ void k(float* x) { __shared__ float s[4][8]; s[0][threadIdx.x] = 1; __syncthreads(); x[threadIdx.x] = s[0][31 - threadIdx.x]; }",
    1,
    32,
    [Z(32)],
    None,
)

# text, a phrase of what is said of it, arguments; two blocks of 64 threads
HOSTILE = [
    ("__global__ void k(float* x){ for(;;); }", "endless", [F(64)]),
    (
        "__device__ int f(int n){ volatile int a[10]; a[0]=n; return f(n+1)+a[0]; } __global__ void k(float* x){ x[0]=f(0); }",
        "stack",
        [F(64)],
    ),
    (
        "__global__ void k(float* x){ volatile float a[1<<20]; for(int i=0;i<(1<<20);i+=7) a[i]=i; x[threadIdx.x]=a[5]; }",
        "stack",
        [F(64)],
    ),
    ("__global__ void k(float* x){ *(float*)0 = 1; }", "wild pointer", [F(64)]),
    ("__global__ void k(float* x){ x[threadIdx.x] = 1; }", "wild pointer", [None]),
    ("__global__ void k(float* x){ exit(0); }", "exit", [F(64)]),
    ("#include <unistd.h>\n__global__ void k(float* x){ _exit(0); }", "of the host's library", [F(64)]),
    ("__global__ void k(float* x){ abort(); }", "abort", [F(64)]),
    ('__global__ void k(float* x){ while(1) printf("hello %d\\n", threadIdx.x); }', "endless", [F(64)]),
    ("#include <assert.h>\n__global__ void k(float* x){ assert(threadIdx.x < 5); }", "assert", [F(64)]),
    ("__global__ void k(float* x){ __trap(); }", "trap", [F(64)]),
    ("__global__ void k(float* x){ throw 1; }", "exception", [F(64)]),
    ("#include <signal.h>\n__global__ void k(float* x){ kill(getpid(), 9); }", "of the host's library", [F(64)]),
    ("__global__ void k(float* x){ while(1) memset(malloc(1<<20),1,1<<20); }", "allocates itself", [F(64)]),
    ("__global__ void k(float* x){ x[threadIdx.x] = 5 / (int)x[0]; }", "division by zero", [F(64)]),
    ("__global__ void k(float* x){ int i = threadIdx.x; x[i - 5] = 1; }", "element -5 of `x`", [F(64)]),
    (
        "__global__ void k(float* x){ unsigned i = threadIdx.x; if (i < 64 - 0) x[i - 5] = 1; }",
        "(-5 as an unsigned number)",
        [F(64)],
    ),
    ("__global__ void k(float* x){ x[(long long)threadIdx.x << 40] = 1; }", "wild pointer", [F(64)]),
    (
        "__global__ void k(float* x){ __shared__ float* p; float mine = 3; if (threadIdx.x==0) p = &mine; __syncthreads(); x[threadIdx.x] = *p; }",
        "wild pointer",
        [F(64)],
    ),
    (
        "__global__ void k(float* x){ char a[16]; volatile char* p = a; for (int i = 0; i < 1000000; i++) p[i] = 0; x[0]=a[3]; }",
        "wild pointer",
        [F(64)],
    ),
    (
        "__global__ void k(int* x){ if (blockIdx.x == 0) while (atomicAdd(x, 0) == 0); else atomicAdd(x, 1); }",
        "endless",
        [torch.zeros(1, dtype=torch.int32)],
    ),
    (
        "__global__ void k(float* x){ if (threadIdx.x < 32) __syncthreads(); else __syncthreads(); }",
        "divergent barrier",
        [F(64)],
    ),
    (
        "__global__ void k(float* x){ float v=1; if (threadIdx.x % 32 < 16) v = __shfl_down_sync(0xffffffff, v, 8); __syncthreads(); x[threadIdx.x] = v; }",
        "divergent barrier",
        [F(64)],
    ),
    (
        "__global__ void k(float* x){ float v=1; v = __shfl_down_sync(0x1, v, 8); x[threadIdx.x] = v; }",
        "divergent barrier",
        [F(64)],
    ),
    ("__global__ void k(float* x){ float4 v = *(float4*)(x + 1); x[threadIdx.x] = v.x; }", "misaligned", [F(64)]),
    ("__global__ void k(float4* x){ x[threadIdx.x] = make_float4(1,2,3,4); }", "element 64 of `x`", [F(64)]),
    (
        "__global__ void k(float* x){ __shared__ volatile float s[64]; s[threadIdx.x]=threadIdx.x; if (threadIdx.x < 32) { s[threadIdx.x]+=s[threadIdx.x+32]; } x[threadIdx.x]=s[threadIdx.x]; }",
        "race",
        [F(64)],
    ),
    ("__global__ void k(float* x){ if(threadIdx.x==0) memcpy(x, x + 60, 32); }", "element 64 of `x`", [F(64)]),
    (
        "extern __shared__ float s[];\n__global__ void k(float* x){ s[threadIdx.x]=1; __syncthreads(); x[threadIdx.x]=s[threadIdx.x]; }",
        "beyond the shared_mem",
        [F(64)],
    ),
    (
        "__global__ void k(float* x){ float v = x[(threadIdx.x+1) % 64]; __syncthreads(); x[threadIdx.x] = v; }",
        "blocks run in no order",
        [F(64)],
    ),
    ("__global__ void k(char* x){ *(int*)(x+1) = 4; }", "misaligned", [torch.zeros(64, dtype=torch.int8)]),
    (
        "template<int N> struct A { static const int v = A<N-1>::v + A<N-2>::v; }; __global__ void k(float* x){ x[0] = A<100000>::v; }",
        "line 1",
        [F(64)],
    ),
    ("__global__ void k(float* x){\n int i = threadIdx.x\n x[i] = 1;\n}", "line 3", [F(64)]),
    ("__global__ void k(float* x){\n if (x) {\n", "the text ends inside", [F(64)]),
    ("__device__ float f(float);\n__global__ void k(float* x){\n x[0] = f(1); }", "undefined reference", [F(64)]),
    ("__global__ int k(float* x){ return 1; }", "a kernel returns void", [F(64)]),
    ("void k(float* x){ }", "there is no kernel", [F(64)]),
    ("__global__ void k(float* x){ x[i] = 1; }", 'identifier "i" is undefined', [F(64)]),
    ("__global__ void k(float* x){ x[threadidx.x] = 1; }", "is undefined; did you mean threadIdx?", [F(64)]),
    ("__global__ void k(float* x){ string s = 1; }", 'identifier "string" is undefined', [F(64)]),
    (
        "__global__ void k(float* x){\n for (half = 2; half > 0; half /= 2) x[half] = 1; }",
        'identifier "half" is undefined',
        [F(64)],
    ),
    ("__global__ void k(float* x){ x[0] = 1; }\nint main() {\n k<<<1, 1>>>(0);\n}", "line 3: k<<<1", [F(64)]),
    (
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n__global__ void k(float* x){ auto b = cg::this_grid(); b.sync(); }",
        "needs a cooperative launch",
        [F(64)],
    ),
    ("__global__ void k(float* x){ threadIdx.x = 3; }", "line 1", [F(64)]),
    ("__global__ void k(float* x){ atomicMax(x, 1.0f); }", "atomicMax does not exist for this type", [F(64)]),
    ("struct P { float* a; int n; }; __global__ void k(P p){ p.a[0] = 1; }", "a structure", [F(64)]),
    ("__global__ void k(float* x, int n){ x[0] = n; }", "`int n` cannot hold", [F(64), 2147483648]),
    ("__global__ void k(float* x, int n){ x[0] = n; }", "needs a whole number", [F(64), 1.0]),
]
