// Kernels by name: six of cuda_samples.py, other right ways to write them, and kernels in many styles. Behind the name of
// one: the grid, the block, the arguments, and where it is needed a name and the bytes of shared memory; the fault.

// == add
__global__ void add(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = x[i] + y[i];
}

// == transpose
#define TILE 16
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
}

// == total
__global__ void total(const float* x, float* out, int n) {
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
}

// == softmax
__global__ void softmax(const float* x, float* y, int rows, int cols) {
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
}

// == product
#define TILE 16
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
}

// == histogram
__global__ void histogram(const int* x, int* bins, int n) {
  __shared__ int own[16];
  if (threadIdx.x < 16)
    own[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    atomicAdd(&own[x[i]], 1);
  __syncthreads();
  if (threadIdx.x < 16)
    atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}

// == add 2
__global__ void add(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = x[i] + y[i];
}

// == add 3
extern "C" __global__ void __launch_bounds__(256) add(const float4* x, const float4* y, float4* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 4) {
    float4 a = x[i], b = y[i];
    out[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }
}

// == transpose 2
__global__ void transpose(const float* in, float* out, int rows, int cols) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (c < cols && r < rows) out[c * rows + r] = in[r * cols + c];
}

// == transpose 3
__global__ void transpose(const float* in, float* out, int rows, int cols) {
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
}

// == total 2
__global__ void total(const float* x, float* out, int n) {
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
}

// == total 3
__device__ unsigned arrived = 0;
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
}

// == softmax 2
__global__ void softmax(const float* x, float* y, int rows, int cols) {
  int row = blockIdx.x * blockDim.y + threadIdx.y;  // a warp each row
  if (row >= rows) return;
  x += row * cols; y += row * cols;
  float most = -INFINITY, sum = 0;
  for (int c = threadIdx.x; c < cols; c += 32) most = max(most, x[c]);
  for (int d = 16; d; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
  for (int c = threadIdx.x; c < cols; c += 32) sum += __expf(x[c] - most);
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  for (int c = threadIdx.x; c < cols; c += 32) y[c] = __fdividef(__expf(x[c] - most), sum);
}

// == product 2
__global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
  int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= M || col >= N) return;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum = fmaf(A[row * K + k], B[k * N + col], sum);
  C[row * N + col] = sum;
}

// == product 3
template <int T> __global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ float a[2][T][T + 1], b[2][T][T + 1];  // two buffers: one barrier a tile
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * T + y, col = blockIdx.x * T + x; float sum = 0;
  for (int k = 0, turn = 0; k < K; k += T, turn ^= 1) {
    a[turn][y][x] = row < M && k + x < K ? A[row * K + k + x] : 0;
    b[turn][y][x] = col < N && k + y < K ? B[(k + y) * N + col] : 0;
    __syncthreads();
    for (int j = 0; j < T; j++) sum += a[turn][y][j] * b[turn][j][x];
  }
  if (row < M && col < N) C[row * N + col] = sum;
}

// == histogram 2
__global__ void histogram(const int* x, int* bins, int n) {
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
}

// == bitonic
__global__ void bitonic(float* d) { __shared__ float s[256]; unsigned t = threadIdx.x; s[t] = d[t]; __syncthreads();
 for (unsigned k = 2; k <= blockDim.x; k *= 2) for (unsigned j = k / 2; j > 0; j /= 2) { unsigned p = t ^ j;
   if (p > t) { bool up = (t & k) == 0; if ((s[t] > s[p]) == up) { float v = s[t]; s[t] = s[p]; s[p] = v; } } __syncthreads(); }
 d[t] = s[t]; }

// == conv
#define RAD 2
__constant__ float w[5] = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
__global__ void conv(const float* x, float* y, int n) { __shared__ float s[64 + 2 * RAD];
 int g = blockIdx.x * 64 + threadIdx.x, l = threadIdx.x + RAD;
 s[l] = g < n ? x[g] : 0;
 if (threadIdx.x < RAD) { s[l - RAD] = g >= RAD ? x[g - RAD] : 0; s[l + 64] = g + 64 < n ? x[g + 64] : 0; }
 __syncthreads(); if (g >= n) return; float v = 0; for (int k = -RAD; k <= RAD; k++) v += w[k + RAD] * s[l + k]; y[g] = v; }

// == layernorm
template <typename T> __inline__ __device__ T block_sum(T v) { static __shared__ T s[32]; int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
 for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o, 32); if (lane == 0) s[w] = v; __syncthreads();
 v = (threadIdx.x < (blockDim.x >> 5)) ? s[lane] : (T)0.0f; if (w == 0) for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o, 32); return v; }
__global__ void layernorm(const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta, float* __restrict__ y, int d, float eps) {
 __shared__ float s_mean, s_var; const float4* row = (const float4*)(x + (size_t)blockIdx.x * d); float sum = 0;
 for (int i = threadIdx.x; i < d / 4; i += blockDim.x) { float4 v = row[i]; sum += v.x + v.y + v.z + v.w; }
 sum = block_sum<float>(sum); if (threadIdx.x == 0) s_mean = sum / d; __syncthreads();
 float var = 0; for (int i = threadIdx.x; i < d / 4; i += blockDim.x) { float4 v = row[i]; v.x -= s_mean; v.y -= s_mean; v.z -= s_mean; v.w -= s_mean; var += v.x*v.x + v.y*v.y + v.z*v.z + v.w*v.w; }
 var = block_sum<float>(var); if (threadIdx.x == 0) s_var = rsqrtf(var / d + eps); __syncthreads();
 for (int i = threadIdx.x; i < d; i += blockDim.x) y[blockIdx.x * d + i] = (x[blockIdx.x * d + i] - s_mean) * s_var * __ldg(&gamma[i]) + __ldg(&beta[i]); }

// == csr
__global__ void spmv(const int* ptr, const int* col, const float* val, const float* x, float* y, int rows) {
 int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31; if (row >= rows) return;
 float s = 0; for (int j = ptr[row] + lane; j < ptr[row + 1]; j += 32) s += val[j] * x[col[j]];
 for (int o = 16; o; o >>= 1) s += __shfl_down_sync(0xffffffff, s, o); if (!lane) y[row] = s; }

// == warp aggregated
__device__ int agg(int* c) { unsigned m = __activemask(); int leader = __ffs(m) - 1, lane = threadIdx.x & 31, r = 0; if (lane == leader) r = atomicAdd(c, __popc(m)); r = __shfl_sync(m, r, leader); return r + __popc(m & ((1u << lane) - 1)); }
__global__ void filter(const float* x, float* out, int* count, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n && x[i] > 0) out[agg(count)] = x[i]; }

// == double cas
__device__ double atomicAddD(double* address, double val) { unsigned long long int* a = (unsigned long long int*)address; unsigned long long int old = *a, assumed;
 do { assumed = old; old = atomicCAS(a, assumed, __double_as_longlong(val + __longlong_as_double(assumed))); } while (assumed != old); return __longlong_as_double(old); }
__global__ void sum(const double* x, double* s, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) atomicAddD(s, x[i]); }

// == half2
#include <cuda_fp16.h>
__global__ void axpy(const __half2* x, __half2* y, __half a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = __hfma2(__half2half2(a), x[i], y[i]); }

// == half | 1, 128, [R(100).half(), R(100).half(), 100]
#include "cuda_fp16.h"
__global__ void f(const half* x, half* y, int n) { int i = threadIdx.x; if (i < n) { half v = x[i]; y[i] = v * v + __float2half(0.5f) > half(1.0f) ? hexp(v) : __hadd(v, __float2half(1)); float q = v; y[i] += half(q) - v; } }

// == bf16
#include <cuda_bf16.h>
__global__ void f(const __nv_bfloat16* x, __nv_bfloat16* y) { int i = threadIdx.x; y[i] = __float2bfloat16(__bfloat162float(x[i]) * 2.f); }

// == namespace | 1, 32, [Z(32)], "mine::k"
namespace mine { __global__ void k(float* x) { x[threadIdx.x] = 1; } }

// == macro kernel | 1, 32, [R(32), Z(32)], "twice"
#define DEF(name, op) __global__ void name(const float* x, float* y) { int i = threadIdx.x; y[i] = x[i] op 2; }
DEF(twice, *)
DEF(half_of, /)

// == default template | 1, 32, [R(32)], "k<>"
template <int B = 32, typename T = float> __global__ void k(T* x) { __shared__ T s[B]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[B - 1 - threadIdx.x]; }

// == template dynamic | 1, 32, [R(32)], "k<float>", 128
template <typename T> __global__ void k(T* x) { extern __shared__ __align__(sizeof(T)) unsigned char raw[]; T* s = reinterpret_cast<T*>(raw); s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[31 - threadIdx.x]; }

// == no args | 2, 32, []
__device__ int counter;
__global__ void k() { atomicAdd(&counter, 1); }

// == arrays params | 1, 32, [R(32), Z(32), 32]
__global__ void k(const float x[], float y[32], const int n) { y[threadIdx.x] = x[n - 1 - threadIdx.x]; }

// == consts | 2, 32, [R(100), Z(100), 100]
__global__ void __launch_bounds__(256, 2) k(float const * const __restrict__ x, float *__restrict__ y, size_t n) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) y[i] = std::min(x[i], 0.f) + max(1, 2u) + ::fabsf(x[i]); }
#include <algorithm>

// == std | 1, 32, [R(32)]
#include <algorithm>
using namespace std;
__global__ void k(float* x) { int i = threadIdx.x; x[i] = min(x[i], 0.f) + max(1, i) + abs(x[i]) + std::max(x[i], 2.f) + min(i, 3u) + pow(x[i], 2.f) + floor(x[i]) + sqrt(fabs(x[i])) + __sinf(x[i]) + __powf(2.f, x[i]) + exp2f(x[i]) + erff(x[i]) + normcdff(0.f); }

// == arch | 1, 32, [R(32)]
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
#define OK 1
#else
#error no
#endif
__global__ void k(float* x) { x[threadIdx.x] = OK; }

// == structs | 1, 32, [R(32), 1, 32]
struct Vec { float a, b; __host__ __device__ Vec(float x = 0, float y = 0) : a(x), b(y) {} __device__ Vec operator+(const Vec& o) const { return Vec(a + o.a, b + o.b); } };
enum Op { PLUS, MINUS };
struct Pair { float v; int i; };
__device__ __host__ inline void swap_(float& a, float& b) { float t = a; a = b; b = t; }
__global__ void k(float* x, int op, int n) { __shared__ Pair s[32]; static constexpr int W = 32; int i = threadIdx.x; s[i].v = x[i]; s[i].i = i; __syncthreads();
 Pair best = s[0]; for (int j = 1; j < W; ++j) if (s[j].v > best.v) best = s[j];
 Vec v = Vec(x[i], 1) + Vec(1, 2); switch ((Op)op) { case PLUS: x[i] = v.a + v.b; break; default: x[i] = best.v + best.i; }
 auto f = [&](float q) { return q * v.a; }; float a = f(1), b = f(2); swap_(a, b); x[i] += a - b; float loc[4]; for (int j = 0; j < 4; j++) loc[(j + i) % 4] = j; x[i] += loc[i % 4]; }

// == float2 shared | 1, 32, [R(64)] | race
__global__ void k(float2* x) { __shared__ float2 s[8][5]; int i = threadIdx.x; if (i < 32) { s[i / 4][i % 4] = x[i]; } __syncthreads(); float2 v = s[7 - i / 4][i % 4]; v.x += 1; s[i / 4][i % 4].y = 1; x[i] = v; }

// == bool/uchar | (2, 2), (8, 8), [torch.randint(0, 2, (13, 14), generator=g, dtype=torch.uint8), torch.zeros(13, 14, dtype=torch.uint8), torch.zeros(13, 14, dtype=torch.bool), 14, 13]
__global__ void life(const unsigned char* a, unsigned char* b, bool* alive, int w, int h) { int x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y; if (x >= w || y >= h) return; int n = 0; for (int dy = -1; dy <= 1; dy++) for (int dx = -1; dx <= 1; dx++) if (dx || dy) n += a[(y + dy + h) % h * w + (x + dx + w) % w]; unsigned char c = a[y * w + x]; b[y * w + x] = n == 3 || (c && n == 2); alive[y * w + x] = b[y * w + x]; }

// == uchar shared hist | 1, 64, [torch.randint(0, 255, (50,), generator=g, dtype=torch.uint8), torch.zeros(4, dtype=torch.int32)]
__global__ void k(const unsigned char* x, unsigned* out) { __shared__ unsigned char s[64 * 4]; for (int i = 0; i < 4; i++) s[threadIdx.x * 4 + i] = 0; for (int i = 0; i < 50; i++) s[threadIdx.x * 4 + (x[i] & 3)]++; __syncthreads(); if (threadIdx.x < 4) { unsigned n = 0; for (int i = 0; i < 64; i++) n += s[i * 4 + threadIdx.x]; out[threadIdx.x] = n; } }

// == int64 gather | 2, 16, [R(10, 20), torch.randint(0, 10, (7,), generator=g), Z(7, 20), 20, 7]
__global__ void k(const float* w, const long long* idx, float* out, int d, long n) { for (long i = blockIdx.x; i < n; i += gridDim.x) for (int c = threadIdx.x; c < d; c += blockDim.x) out[i * d + c] = w[idx[i] * d + c]; }

// == syncthreads_or | 1, 64, [torch.arange(64, 0, -1, dtype=torch.int32), 64]
__global__ void k(int* x, int n) { int i = threadIdx.x; __shared__ int s[64]; s[i] = x[i]; __syncthreads(); int more; do { int v = s[i]; int left = i ? s[i - 1] : 0; __syncthreads(); if (left > v) s[i] = left; more = __syncthreads_or(left > v); } while (more); x[i] = s[i] + __syncthreads_count(i < 5) + __syncthreads_and(1); }

// == W loop barrier uneven | 1, 64, [R(100), 100] | divergent barrier|uninitialised
__global__ void k(float* x, int n) { __shared__ float s[64]; for (int i = threadIdx.x; i < n; i += 64) { s[threadIdx.x] = x[i]; __syncthreads(); x[i] = s[63 - threadIdx.x]; __syncthreads(); } }

// == W syncwarp missing | 1, 32, [R(32), Z(1)] | race
__global__ void k(const float* x, float* y) { __shared__ float s[32]; int i = threadIdx.x; s[i] = x[i]; __syncwarp(); for (int d = 16; d; d /= 2) { if (i < d) s[i] += s[i + d]; } if (!i) *y = s[0]; }

// == syncwarp | 1, (32, 4), [R(128), Z(4)]
__global__ void k(const float* x, float* y) { __shared__ float s[4][32]; int i = threadIdx.x, w = threadIdx.y; s[w][i] = x[w * 32 + i]; __syncwarp(); for (int d = 16; d; d /= 2) { if (i < d) s[w][i] += s[w][i + d]; __syncwarp(); } if (!i) y[w] = s[w][0]; }

// == W broadcast | 1, 32, [R(32), Z(32)] | race
__global__ void k(const float* x, float* y) { __shared__ float first; if (threadIdx.x == 0) first = x[0]; y[threadIdx.x] = first; }

// == W broadcast reversed | 1, 32, [R(32), Z(32)] | race
__global__ void k(const float* x, float* y) { __shared__ float last; if (threadIdx.x == 31) last = x[0]; y[threadIdx.x] = last; }

// == W lock not released | 1, 32, [R(32)] | endless
__device__ int lock;
__global__ void k(float* x) { while (atomicCAS(&lock, 0, 1)); x[0] += 1; }

// == lock released | 2, 32, [Z(1)]
__device__ int lock;
__global__ void k(float* x) { bool done = false; while (!done) { if (atomicCAS(&lock, 0, 1) == 0) { __threadfence(); x[0] += 1; __threadfence(); atomicExch(&lock, 0); done = true; } } }

// == 3d | (2, 2, 2), (4, 4, 2), [Z(3, 5, 7), 3, 5, 7]
__global__ void k(float* x, int a, int b, int c) { int i = threadIdx.x + blockIdx.x * blockDim.x, j = threadIdx.y + blockIdx.y * blockDim.y, l = threadIdx.z + blockIdx.z * blockDim.z; if (i < c && j < b && l < a) x[(l * b + j) * c + i] += i + 10 * j + 100 * l; }

// == W view arg | 1, 9, [R(100)[10:18], Z(100)[50:58]] | out of bounds
__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }

// == aliased | 1, 64, [a := R(64), a]
__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * 2; }

// == W aliased shift | 1, 63, [(a := R(64))[1:], a[:-1]] | race
__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * 2; }

// == wb empty | 1, 63, [Z(0), 0]
__global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }

// == divergent shfl subgroup | 1, 32, [R(32)]
__global__ void k(float* x) { int i = threadIdx.x; float v = x[i]; if (i < 16) { v += __shfl_xor_sync(0x0000ffff, v, 1); } else { v -= __shfl_xor_sync(0xffff0000, v, 1); } x[i] = v; }

// == W tail warp | 1, 40, [R(40)] | undefined
__global__ void k(float* x) { float v = x[threadIdx.x]; v += __shfl_down_sync(0xffffffff, v, 1); x[threadIdx.x] = v; }

// == tail warp, of which one lane counts | 1, 8, [R(8), Z(1)]
__global__ void k(float* x, float* y) { float v = x[threadIdx.x]; for (int d = 4; d; d /= 2) v += __shfl_down_sync(0xffffffff, v, d); if (threadIdx.x == 0) *y = v; }

// == W ended lanes | 1, 32, [R(32), Z(1), 20] | undefined
__global__ void k(const float* x, float* y, int n) { int i = threadIdx.x; if (i >= n) return; float v = x[i]; for (int d = 16; d; d /= 2) v += __shfl_down_sync(0xffffffff, v, d); if (i == 0) *y = v; }

// == W lane outside of the mask | 1, 32, [R(32)] | undefined
__global__ void k(float* x) { int i = threadIdx.x; float v = x[i]; if (i < 16) { v += __shfl_down_sync(0x0000ffff, v, 8); x[i] = v; } }

// == match/reduce | 1, 32, [torch.arange(32, dtype=torch.int32)]
__global__ void k(int* x) { unsigned m = __match_any_sync(~0u, x[threadIdx.x] & 3); int s = __reduce_add_sync(~0u, 1); x[threadIdx.x] = __popc(m) + s + __any_sync(~0u, x[threadIdx.x] > 3) + __all_sync(~0u, 1); }

// == clock | 1, 4, [torch.zeros(4, dtype=torch.int64)]
__global__ void k(long long* x) { long long a = clock64(); x[threadIdx.x] = clock64() - a; clock_t b = clock(); }

// == goto/dowhile | 1, 7, [Z(31)]
__global__ void k(float* x) { int i = threadIdx.x; do { if (i > 30) goto out; x[i] += 1; i += 7; } while (true); out: return; }

// == big launch | 4096, 256, [Z(1 << 20), 1 << 20]
__global__ void k(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = i; }

// == max threads | 64, 1024, [Z(1024)]
__global__ void k(float* x) { __shared__ float s[1024]; s[threadIdx.x] = 1; __syncthreads(); x[threadIdx.x] = s[1023 - threadIdx.x]; }

// == W sync in one branch only | 1, 64, [R(64)] | divergent barrier
__global__ void k(float* x) { if (threadIdx.x & 1) { __syncthreads(); x[threadIdx.x] = 1; } else x[threadIdx.x] = 2; __syncthreads(); x[threadIdx.x] += 1; }

// == W int overflow index | 1, 64, [R(64), 50000] | out of bounds
__global__ void k(float* x, int n) { int i = threadIdx.x * n * n; x[i] = 1; }

// == W atomicAdd plain read after | 1, 64, [torch.zeros(1, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)] | race
__global__ void k(int* x, int* y) { atomicAdd(x, 1); y[threadIdx.x] = *x; }

// == atomic return used | 2, 64, [torch.zeros(1, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)]
__global__ void k(int* x, int* y) { int p = atomicAdd(x, 1); y[p] = threadIdx.x; }

// == W float4 tail | 1, 64, [R(63), Z(63), 63] | out of bounds
__global__ void k(const float4* x, float4* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i * 4 < n) y[i] = x[i]; }

// == W float4 misaligned view | 1, 4, [R(64)[1:17], Z(16)] | misaligned
__global__ void k(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }

// == int for float ok | 1, 4, [Z(4), 3]
__global__ void k(float* x, float a) { x[0] = a; }

// == register tile volatile ptr ok | 1, 64, [R(64), Z(64), 64], None, (64 + 72) * 4
__global__ void k(const float* __restrict__ A, float* __restrict__ C, int n) { extern __shared__ float sm[]; float* a = sm; float (*b)[9] = (float (*)[9])(sm + 64); int t = threadIdx.x; a[t] = A[t]; b[t / 8][t % 8] = A[t]; __syncthreads(); C[t] = a[63 - t] + b[t % 8][t / 8]; }

// == W dyn partition too small | 1, 64, [R(64), Z(64), 64], None, (64 + 64) * 4 | out of bounds
__global__ void k(const float* __restrict__ A, float* __restrict__ C, int n) { extern __shared__ float sm[]; float* a = sm; float (*b)[9] = (float (*)[9])(sm + 64); int t = threadIdx.x; a[t] = A[t]; b[t / 8][t % 8] = A[t]; __syncthreads(); C[t] = a[63 - t] + b[t % 8][t / 8]; }

// == W shared_mem forgotten | 1, 64, [R(64)] | out of bounds
__global__ void k(float* x) { extern __shared__ float s[]; s[threadIdx.x] = x[threadIdx.x]; }

// == shared constexpr | 1, 16, [R(20)]
constexpr int N = 8; template <int M> struct S { static constexpr int v = M * 2; };
__global__ void k(float* x) { __shared__ float s[S<N>::v + 1]; s[threadIdx.x] = 1; __syncthreads(); x[threadIdx.x] = s[15 - threadIdx.x]; }

// == shared in device fn | 1, 64, [R(64)]
__device__ float share(float v) { __shared__ float s[64]; s[threadIdx.x] = v; __syncthreads(); float r = s[63 - threadIdx.x]; __syncthreads(); return r; }
__global__ void k(float* x) { x[threadIdx.x] = share(share(x[threadIdx.x])); }

// == W shared ptr passed | 1, 64, [R(64)] | out of bounds
__device__ void fill(float* s, int n) { for (int i = threadIdx.x; i <= n; i += blockDim.x) s[i] = i; }
__global__ void k(float* x) { __shared__ float s[100]; fill(s, 100); __syncthreads(); x[threadIdx.x] = s[99 - threadIdx.x]; }

// == W shared far | 1, 64, [R(64)] | out of bounds|wild
__global__ void k(float* x) { __shared__ float s[64]; int i = threadIdx.x; s[i * 100000] = x[i]; }

// == W two arrays overflow into next | 1, 64, [R(64)] | out of bounds
__global__ void k(float* x) { __shared__ float a[64]; __shared__ float b[64]; int i = threadIdx.x; b[i] = 0; a[i + 1] = x[i]; __syncthreads(); x[i] = a[i] + b[i]; }

// == W device counter race | 1, 64, [torch.zeros(64, dtype=torch.int32)] | race
__device__ int counter = 0;
__global__ void k(int* x) { counter++; x[threadIdx.x] = counter; }

// == rgb | 1, 64, [torch.zeros(60, 3, dtype=torch.uint8), torch.zeros(60, dtype=torch.uint8), 60]
__global__ void k(const uchar3* in, unsigned char* gray, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) { uchar3 p = in[i]; gray[i] = 0.3f * p.x + 0.59f * p.y + 0.11f * p.z; } }

// == uchar4 | 1, 64, [torch.zeros(60, 4, dtype=torch.uint8), torch.zeros(60, 4, dtype=torch.uint8), 60]
__global__ void k(const uchar4* in, uchar4* out, int n) { int i = threadIdx.x; if (i < n) { uchar4 p = in[i]; p.x = 255 - p.x; out[i] = make_uchar4(p.x, p.y, p.z, 0); } }

// == float3 | 1, 64, [R(60, 3), R(60, 3), 0.1, 60]
__global__ void k(float3* p, float3* v, float dt, int n) { int i = threadIdx.x; if (i < n) { float3 a = p[i], b = v[i]; a.x += b.x * dt; a.y += b.y * dt; a.z += b.z * dt; p[i] = a; v[i] = make_float3(0, 0, 0); } }

// == long kernels | 1, 64, [R(64), 20000]
__global__ void k(float* x, long n) { for (long i = 0; i < n; i++) x[threadIdx.x] = x[threadIdx.x] * 0.5f + 1; }

// == nullptr opt | 1, 64, [None, R(64)]
__global__ void k(const float* b, float* x) { x[threadIdx.x] = b ? b[threadIdx.x] : 0; }

// == extern C block | 1, 16, [R(64)]
extern "C" {
__global__ void k(float* x) { x[threadIdx.x] = 1; }
}

// == static global | 1, 16, [R(64)]
static __global__ void k(float* x) { x[threadIdx.x] = 1; }

// == proto then def | 1, 16, [R(64), 3]
__global__ void k(float* x, int n);
__device__ float f(float v);
__global__ void k(float* x, int n) { x[threadIdx.x] = f(n); }
__device__ float f(float v) { return v * 2; }

// == comments | 1, 16, [R(64), 3]
/* __global__ void fake(int* a) { } */
// __global__ void other() {}
__global__ void k(float* x /* the array */, // data
 int n) { x[threadIdx.x] = n; const char* s = "<<<"; }

// == unicode comment | 1, 16, [R(64)]
// größer als π, 你好
__global__ void k(float* x) { x[threadIdx.x] = 1; /* é */ }

// == crlf | 1, 16, [R(64)]
__global__ void k(float* x) {
  x[threadIdx.x] = 1;
}

// == W line number crlf | 1, 65, [R(64)] | out of bounds
__global__ void k(float* x) {

  x[threadIdx.x] = 1;
}

// == syncthreads in both | 1, 64, [R(64), 1]
__global__ void k(float* x, int f) { if (f) { x[threadIdx.x] = 1; __syncthreads(); } else { __syncthreads(); } x[threadIdx.x] += 1; }

// == sync in uniform loop | 2, 64, [R(128), 10] | race
__global__ void k(float* x, int f) { for (int i = 0; i < f; i++) { __syncthreads(); if (i == 3) break; } x[threadIdx.x] += 1; }

// == W local array | 1, 1, [Z(8), 4] | out of bounds
__global__ void k(float* x, int n) { float a[4]; for (int i = 0; i <= n; i++)
 a[i] = x[i]; x[4 + threadIdx.x] = a[n & 3]; }

// == W local matrix | 1, 4, [Z(8)] | out of bounds
__global__ void k(float* x) { float acc[4][4] = {}; for (int i = 0; i < 4; i++) for (int j = 0; j <= 4; j++) acc[i][j] += x[i]; x[threadIdx.x + 4] = acc[threadIdx.x][1]; }

// == flattened rows | 1, 32, [Z(32)]
__global__ void k(float* x) { __shared__ float s[4][8]; s[0][threadIdx.x] = 1; __syncthreads(); x[threadIdx.x] = s[0][31 - threadIdx.x]; }
