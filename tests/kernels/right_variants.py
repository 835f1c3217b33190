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
