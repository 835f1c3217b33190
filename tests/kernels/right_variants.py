"""Other right ways to write the six kernels: none may be called wrong."""
# ruff: noqa: E501

from __future__ import annotations

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
    ("add", """template <typename T, int PER>
__global__ void add_many(const T* x, const T* y, T* out, int n) {
#pragma unroll
  for (int k = 0; k < PER; k++) {
    int i = (blockIdx.x * PER + k) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
  }
}""", {"name": "add_many<float, 4>", "grid": 1}),
    ("add", """#include <cuda_runtime.h>
#include <stdio.h>
struct Sum { __device__ __forceinline__ float operator()(float a, float b) const { return a + b; } };
template <class F> __device__ void each(const float* x, const float* y, float* out, unsigned n, F f) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = f(__ldg(x + i), __ldg(&y[i]));
}
__global__ void add(const float* x, const float* y, float* out, unsigned n) { each(x, y, out, n, Sum()); }""", {}),
    ("add", """__global__ void add(float* x, float* y, float* out, int n) {
  const int2 at = make_int2(threadIdx.x + threadIdx.y * blockDim.x, blockIdx.x);
  long long i = (long long)at.y * blockDim.x * blockDim.y + at.x;
  if (i >= n) return;  // before no barrier
  float2* pair = reinterpret_cast<float2*>(out) + i / 2;
  if (i % 2 == 0) *pair = make_float2(x[i] + y[i], x[i + 1] + y[i + 1]);
}""", {"block": (32, 8)}),
    ("add", """__global__ void add(const float* x, const float* y, float* out, int n) {
  extern __shared__ float stage[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  stage[threadIdx.x] = i < n ? x[i] : 0.f;
  stage[threadIdx.x] += i < n ? y[i] : 0.f;  // each thread its own: no barrier needed
  if (i < n) out[i] = stage[threadIdx.x];
}""", {"shared_mem": 1024}),
    ("transpose", """__global__ void transpose(const float* in, float* out, int rows, int cols) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (c < cols && r < rows) out[c * rows + r] = in[r * cols + c];
}""", {}),
    ("transpose", """template <int TILE, int ROWS> __global__ void transpose(const float* in, float* out, int rows, int cols) {
  __shared__ float tile[TILE][TILE + 1];
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
  for (int j = 0; j < TILE; j += ROWS)
    if (x < cols && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * cols + x];
  __syncthreads();
  x = blockIdx.y * TILE + threadIdx.x; y = blockIdx.x * TILE + threadIdx.y;
  for (int j = 0; j < TILE; j += ROWS)
    if (x < rows && y + j < cols) out[(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
}""", {"name": "transpose<32, 8>", "grid": (2, 2), "block": (32, 8)}),
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
    ("total", """__global__ void total(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(out, x[i]);
}""", {}),
    ("total", """__inline__ __device__ float warp_sum(float v) {
  #pragma unroll
  for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d, 32);
  return v;
}
__global__ void total(const float* x, float* out, int n) {
  float v = 0.0f;
  const float4* x4 = (const float4*)x;
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) { float4 a = x4[i]; v += a.x + a.y + a.z + a.w; }
  v = warp_sum(v);
  if ((threadIdx.x & 31) == 0) atomicAdd(&out[0], v);
}""", {"grid": 1}),
    ("total", """__global__ void total(const float* x, float* out, int n) {
  extern __shared__ float part[];
  unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x * 2 + t;
  part[t] = (i < n ? x[i] : 0) + (i + blockDim.x < n ? x[i + blockDim.x] : 0);
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 32; s >>= 1) { if (t < s) part[t] += part[t + s]; __syncthreads(); }
  if (t < 32) {
    volatile float* p = part;
    float v = p[t] + p[t + 32]; __syncwarp();
    p[t] = v; __syncwarp();
    for (int s = 16; s; s >>= 1) { if (t < s) v += p[t + s]; __syncwarp(); if (t < s) p[t] = v; __syncwarp(); }
    if (t == 0) out[blockIdx.x] = p[0];
  }
}""", {"grid": 2, "shared_mem": 1024}),
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
    ("total", """__global__ void total(const float* x, float* out, int n) {
  __shared__ float part[256];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  part[t] = i < n ? x[i] : 0;
  for (int s = 1; s < blockDim.x; s *= 2) {
    __syncthreads();
    int k = 2 * s * t;
    if (k + s < blockDim.x) part[k] += part[k + s];
  }
  if (t == 0) out[blockIdx.x] = part[t];
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
    ("softmax", """__global__ void softmax(const float* x, float* y, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;  // online: one pass for maximum and sum
  if (row < rows) {
    float most = -INFINITY, sum = 0;
    for (int c = 0; c < cols; c++) {
      float v = x[row * cols + c], m = fmaxf(most, v);
      sum = sum * expf(most - m) + expf(v - m); most = m;
    }
    for (int c = 0; c < cols; c++) y[row * cols + c] = expf(x[row * cols + c] - most) / sum;
  }
}""", {"grid": 1, "block": 5}),
    ("softmax", """__global__ void softmax(const float* x, float* y, int rows, int cols) {
  __shared__ float top, total; __shared__ float part[2][2];
  int t = threadIdx.x, lane = t & 31, w = t >> 5; const float* in = x + (size_t)blockIdx.x * cols;
  float m = -INFINITY, s = 0;
  for (int c = t; c < cols; c += 64) m = fmaxf(m, in[c]);
  for (int d = 16; d; d /= 2) m = fmaxf(m, __shfl_down_sync(~0u, m, d));
  if (!lane) part[0][w] = m;
  __syncthreads();
  if (!t) top = fmaxf(part[0][0], part[0][1]);
  __syncthreads();
  for (int c = t; c < cols; c += 64) s += expf(in[c] - top);
  for (int d = 16; d; d /= 2) s += __shfl_down_sync(~0u, s, d);
  if (!lane) part[1][w] = s;
  __syncthreads();
  total = part[1][0] + part[1][1];  // every thread writes the same value
  __syncthreads();
  for (int c = t; c < cols; c += 64) y[blockIdx.x * cols + c] = expf(in[c] - top) / total;
}""", {}),
    ("softmax", """__global__ void softmax(const float* x, float* y, int rows, int cols) {
  extern __shared__ __align__(16) unsigned char raw[];
  float* row = reinterpret_cast<float*>(raw); float* part = row + cols;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) row[c] = x[blockIdx.x * cols + c];
  __syncthreads();
  float m = -INFINITY, s = 0;
  for (int c = 0; c < cols; c++) m = fmaxf(m, row[c]);
  for (int c = threadIdx.x; c < cols; c += blockDim.x) s += expf(row[c] - m);
  part[threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.x == 0) for (int k = 1; k < blockDim.x; k++) part[0] += part[k];
  __syncthreads();
  for (int c = threadIdx.x; c < cols; c += blockDim.x) y[blockIdx.x * cols + c] = expf(row[c] - m) / part[0];
}""", {"shared_mem": 4 * (77 + 64)}),
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
    ("product", """#define BM 32
#define BN 32
#define BK 8
__global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ float As[BM * BK]; __shared__ float Bs[BK * BN];
  const int t = threadIdx.x, r0 = t / 16 * 2, c0 = t % 16 * 2;
  float acc[2][2] = {0.0f};
  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = t; i < BM * BK; i += blockDim.x) {
      int r = blockIdx.y * BM + i / BK, k = k0 + i % BK;
      As[i] = (r < M && k < K) ? A[r * K + k] : 0.0f;
    }
    for (int i = t; i < BK * BN; i += blockDim.x) {
      int k = k0 + i / BN, c = blockIdx.x * BN + i % BN;
      Bs[i] = (k < K && c < N) ? B[k * N + c] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; ++k)
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) acc[i][j] += As[(r0 + i) * BK + k] * Bs[k * BN + c0 + j];
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) {
      int r = blockIdx.y * BM + r0 + i, c = blockIdx.x * BN + c0 + j;
      if (r < M && c < N) C[r * N + c] = acc[i][j];
    }
}""", {"grid": (2, 1), "block": 256}),
    ("product", """__global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
  int row = blockIdx.y, lane = threadIdx.x;  // a warp each element, many columns
  for (int col = blockIdx.x; col < N; col += gridDim.x) {
    float sum = 0;
    for (int k = lane; k < K; k += 32) sum += A[row * K + k] * B[k * N + col];
    for (int d = 16; d; d >>= 1) sum += __shfl_down_sync(0xffffffff, sum, d);
    if (lane == 0) C[row * N + col] = sum;
  }
}""", {"grid": (5, 20), "block": 32}),
    ("product", """#define AT(m, r, c, w) m[(r) * (w) + (c)]
__global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;  // split over K, by atomics
  int part = blockIdx.y, parts = gridDim.y;
  if (i < M * N) {
    float sum = 0;
    for (int k = part; k < K; k += parts) sum += AT(A, i / N, k, K) * AT(B, k, i % N, N);
    atomicAdd(C + i, sum);
  }
}""", {"grid": (6, 3), "block": 128}),
    ("histogram", """__global__ void histogram(const int* x, int* bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&bins[x[i]], 1);
}""", {"grid": 24}),
    ("histogram", """__global__ void histogram(const int* x, int* bins, int n) {
  __shared__ unsigned int own[4][16];  // one for each warp
  for (int k = threadIdx.x; k < 64; k += blockDim.x) (&own[0][0])[k] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&own[threadIdx.x >> 5][x[i]], 1u);
  __syncthreads();
  if (threadIdx.x < 16) {
    int sum = 0;
    for (int w = 0; w < 4; w++) sum += own[w][threadIdx.x];
    if (sum) atomicAdd(bins + threadIdx.x, sum);
  }
}""", {}),
    ("histogram", """__global__ void histogram(const int* x, int* bins, int n) {
  int mine = 0;  // a thread each bin
  for (int i = 0; i < n; i++) mine += x[i] == threadIdx.x;
  bins[threadIdx.x] = mine;
}""", {"grid": 1, "block": 16}),
    ("histogram", """__device__ int add_by_cas(int* p, int v) {
  int old = *p, seen;
  do { seen = old; old = atomicCAS(p, seen, seen + v); } while (old != seen);
  return old;
}
__global__ void histogram(const int* x, int* bins, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) add_by_cas(&bins[x[i]], 1);
}""", {}),
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
    ("histogram", """__global__ void histogram(const int* x, int* bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  for (int bin = 0; bin < 16; bin++) {
    unsigned votes = __ballot_sync(0xffffffff, i < n && x[i] == bin);
    if (lane == bin && votes) atomicAdd(&bins[bin], __popc(votes));
  }
}""", {"grid": 24}),
]  # fmt: skip
