// Kernels by name, of test_cuda_library.py: CUDA's own groups, 16-bit floats, copies and small functions.

// == groups
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

// == sum
__global__ void sum(const float* x, float* out, int n) {
  __shared__ float part[32];
  cg::thread_block block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  int i = cg::this_grid().thread_rank();
  float v = cg::reduce(warp, i < n ? x[i] : 0.f, cg::plus<float>());
  if (warp.thread_rank() == 0) part[warp.meta_group_rank()] = v;
  block.sync();
  if (warp.meta_group_rank() == 0) {
    v = warp.thread_rank() < warp.meta_group_size() ? part[warp.thread_rank()] : 0.f;
    for (int by = warp.size() / 2; by > 0; by /= 2) v += warp.shfl_down(v, by);
    if (warp.thread_rank() == 0) atomicAdd(out, v);
  }
}

// == tiles
__device__ int rank_of(cg::thread_group group) { group.sync(); return group.thread_rank(); }
__global__ void tiles(int* out) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<16>(block);
  cg::thread_block_tile<4> part = cg::tiled_partition<4>(tile);
  auto inner = cg::tiled_partition<4>(tile);
  int t = threadIdx.x, values[] = {
    (int)part.size(), (int)part.thread_rank(), (int)inner.meta_group_rank(), (int)inner.meta_group_size(),
    part.shfl(t, 2), part.shfl_up(t, 1), part.shfl_down(t, 1), part.shfl_xor(t, 3),
    (int)part.ballot(t & 1), part.any(t == 5), part.all(t < 8), (int)part.match_any(t / 2),
    cg::inclusive_scan(tile, t), cg::exclusive_scan(tile, t, cg::plus<int>()), cg::reduce(part, t, cg::greater<int>()),
    rank_of(cg::tiled_partition(block, 8)), rank_of(block), cg::reduce(tile, 1 << t % 16, cg::bit_or<int>()),
  };
  for (int k = 0; k < 18; k++) out[t * 18 + k] = values[k];
}

// == stages
#include <cuda_pipeline.h>
__global__ void stages(const float* x, float* out, int n) {
  __shared__ float stage[2][64];
  int t = threadIdx.x;
  __pipeline_memcpy_async(&stage[0][t], &x[t], 4);
  __pipeline_commit();
  float sum = 0;
  for (int i = 0; i < n; i++) {
    int more = i + 1 < n;
    __pipeline_memcpy_async(&stage[(i + 1) % 2][t], &x[more ? (i + 1) * 64 + t : 0], 4, more ? 0 : 4);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    sum += stage[i % 2][63 - t];
    __syncthreads();
  }
  out[t] = sum;
}

// == no_return
__device__ __forceinline__ float largest(float v) {
  for (int by = 16; by > 0; by /= 2) v = fmaxf(v, __shfl_down_sync(0xffffffff, v, by));
}
__device__ float sign(float v) {
  if (v > 0) return 1;
  if (v < 0) return -1;
}
__global__ void all(const float* x, float* out) { out[threadIdx.x] = largest(x[threadIdx.x]); }
__global__ void each(const float* x, float* out) { out[threadIdx.x] = sign(x[threadIdx.x]); }

// == traits
#include <type_traits>
#include <utility>
template <class T, class = std::enable_if_t<std::is_floating_point_v<T>>> __device__ float kind(T) { return 2; }
template <class T, class = std::enable_if_t<std::is_integral<T>::value>> __device__ int kind(T, int) { return 3; }
template <class F> __device__ void call(F&& f) { std::forward<F>(f)(); }
template <class T> __global__ void traits(T* out) {
  static_assert(std::is_same_v<std::decay_t<const T&>, T> && std::is_pointer_v<T* const> && std::is_arithmetic_v<T>);
  static_assert(std::is_same<std::conditional_t<true, int, T>, std::remove_const_t<const int>>::value);
  static_assert(std::bool_constant<true>::value && std::integral_constant<int, 3>() == 3 && !std::false_type());
  std::remove_reference_t<T&> a = kind(T(1)) + kind(2, 1);
  std::remove_cv_t<const T> b = std::move(a);
  call([&] { out[threadIdx.x] = std::is_same_v<T, double> ? 2 * b : b; });
}

// == parts
__global__ void parts(const unsigned* x, const unsigned* y, unsigned* out) {
  unsigned a = x[threadIdx.x], b = y[threadIdx.x], made[] = {
    __vadd4(a, b), __vsub4(a, b), __vsubss4(a, b), __vaddus4(a, b), __vmaxs4(a, b), __vminu4(a, b), __vcmpne4(a, b),
    __vsetgtu4(a, b), __vabsdiffu4(a, b), __vadd2(a, b), __vsubss2(a, b), __vcmpges2(a, b), __vneg2(a),
    __umul24(a & 255, b & 255),
  };
  for (int k = 0; k < 14; k++) out[threadIdx.x * 14 + k] = made[k];
}

// == four
template <class T, int n> struct Few { T v[n]; };
template <class T, int n> __device__ Few<T, n> few(const T* from) {
  Few<T, n> r; for (int i = 0; i < n; i++) r.v[i] = from[i]; return r;
}
template <int n> __global__ void turned(const float* x, float* out) {
  extern __shared__ Few<float, n> part[];
  int t = threadIdx.x;
  part[t] = few<float, n>(x + n * t);
  __syncthreads();
  reinterpret_cast<Few<float, n>*>(out)[t] = few<float, n>((const float*)&part[31 - t]);
}

// == odd
__global__ void odd(int* count, int* first) {
  if (threadIdx.x % 3 == 1) {
    auto now = cg::coalesced_threads();
    if (now.thread_rank() == 0) count[threadIdx.x / 32] = atomicAdd(count + 7, now.size()) * 0 + now.size();
    first[threadIdx.x] = now.shfl((int)threadIdx.x, 2);
  }
}

// == round_all
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__global__ void round_all(const float* x, half* near, half* zero, half* down, half* up, __nv_bfloat16* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  near[i] = __double2half((double)x[i]); zero[i] = __float2half_rz(x[i]);
  down[i] = __float2half_rd(x[i]); up[i] = __float2half_ru(x[i]); b[i] = __double2bfloat16((double)x[i]);
}

// == pairs
#include <cuda_fp16.h>
__global__ void pairs(const half* x, half* out) {
  half2 a = __halves2half2(x[0], x[1]), b = make_half2(x[2], x[3]), m = __hmax2(a, b);
  out[0] = m.x; out[1] = m.y;
  a += -b; out[2] = __low2half(a); out[3] = __high2half(a);
  out[4] = h2exp(b).x; out[5] = hrcp(x[3]); out[6] = __hbgt2(m, b) ? 1.f : 0.f; out[7] = __hge2(m, b).y;
}

// == whole
__global__ void whole(const float* x, int* out, int* bits) {
  int i = threadIdx.x;
  out[i] = __float2int_rn(x[i]) + 7 * __float2int_rd(x[i]) + 49 * __double2int_ru((double)x[i]);
  if (i == 0) {
    bits[0] = __byte_perm(0x03020100, 0x07060504, 0x5140); bits[1] = __dp4a(0x01020304, (int)0xff02fe03, 5);
    bits[2] = __funnelshift_l(0x80000001u, 1u, 4); bits[3] = __usad(3u, 9u, 1u); bits[4] = __umul64hi(1ull << 63, 6ull);
  }
  int all = __reduce_xor_sync(0xffffffffu, (unsigned)i * 3);
  if (i == 5) bits[5] = all;
}

// == pairs 2
__global__ void pairs(float* out) {
  __shared__ alignas(16) float part[64];
  part[threadIdx.x] = threadIdx.x; part[threadIdx.x + 32] = 1;
  __syncthreads();
  if (threadIdx.x < 16) reinterpret_cast<float4*>(out)[threadIdx.x] = reinterpret_cast<float4*>(part)[threadIdx.x];
}

// == turned
#include <cuda_fp16.h>
__global__ void turned(const __half* x, __half* out) {
  __shared__ __align__(16) __half part[128];
  if (threadIdx.x < 16) ((uint4*)part)[threadIdx.x] = ((const uint4*)x)[threadIdx.x];
  out[threadIdx.x] = part[127 - threadIdx.x];
}

// == waits
__global__ void waits(float* x) {
  x[threadIdx.x] = 1;
  __syncthreads();
  int i = 0;
  while (i < 1)
    i *= 2;
  x[0] = 2;
}

// == settings
struct Settings { float scale; int n; double more[3]; };
__global__ void settings(Settings p, float4 v, float* out) {
  if (threadIdx.x == 0) { out[0] = p.scale; out[1] = p.n; out[2] = p.more[2]; out[3] = v.w; }
}
__global__ void settings(int* out) { out[threadIdx.x] = 1; }

// == turns
__global__ void turns(const float* x, float* out, int n) {
  __shared__ float part[64];
  float sum = 0;
  for (int i = 0; i < n; i += 64) {
    part[threadIdx.x] = x[i + threadIdx.x];
    __syncthreads();
    sum += part[63 - threadIdx.x];
  }
  out[threadIdx.x] = sum;
}

// == halves
#include <cuda_pipeline.h>
#include <cuda_fp16.h>
__global__ void turned(const __half* x, __half* out) {
  __shared__ __align__(16) __half part[64];
  int t = threadIdx.x;
  if (t < 8) { copy; }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  out[t] = part[63 - t];
}

// == bytes
__global__ void turned(const unsigned char* x, int* out) {
  __shared__ __align__(4) unsigned char part[256];
  int t = threadIdx.x;
  for (int i = 0; i < 4; i++) part[4 * t + i] = x[4 * t + i];
  __syncthreads();
  out[t] = ((int*)part)[63 - t];
}
