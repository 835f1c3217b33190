"""Six CUDA kernels and ways to break them, as data."""
# ruff: noqa: E501

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
    Broken("histogram", [("  if (threadIdx.x < 16)\n    own[threadIdx.x] = 0;\n", "")], UNSET, "own[x[i]]", "`own`"),
    Broken("histogram", [("  if (threadIdx.x < 16)\n    atomicAdd(&bins", "    atomicAdd(&bins")], OOB, "bins[", ""),
]  # fmt: skip
