"""Do CUDA's own groups, 16-bit floats and small functions give what they give on a GPU?"""

import functools
import operator
import re

import numpy as np
import pytest
import torch

import kernelcheck

pytestmark = pytest.mark.skipif(bool(kernelcheck.why_not()), reason="no C++ compiler")

GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
"""
SUM = """
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
"""
TILES = """
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
"""


def launched(source, *, name=None, grid=1, block=32, args=()):
    """Return the report of a launch."""
    return kernelcheck.compile_cuda(source, name).check(grid=grid, block=block, args=args)


def test_a_sum_with_cooperative_groups_is_the_sum():
    x, out = torch.arange(1000.0), torch.zeros(1)
    report = launched(GROUPS + SUM, grid=4, block=256, args=(x, out, 1000))
    assert report.fault is None and out.item() == x.sum().item() and report.barriers == 4


def test_tiles_give_their_threads_what_they_give_on_a_gpu():
    out = torch.zeros(64, 18, dtype=torch.int32)
    assert launched(GROUPS + TILES, block=64, args=(out,)).fault is None
    for t, row in enumerate(out.tolist()):
        four, sixteen = range(t // 4 * 4, t // 4 * 4 + 4), range(t // 16 * 16, t // 16 * 16 + 16)
        rank = t % 4
        assert row == [
            4, rank, t % 16 // 4, 4,
            four[2], four[max(rank - 1, 0)], four[min(rank + 1, 3)], four[rank ^ 3],
            0b1010, 5 in four, t < 8, 0b11 << rank // 2 * 2,
            sum(range(sixteen[0], t + 1)), sum(range(sixteen[0], t)), four[3],
            t % 8, t, 0xFFFF,
        ]  # fmt: skip


def test_threads_that_are_together_by_chance_are_a_group():
    source = """
__global__ void odd(int* count, int* first) {
  if (threadIdx.x % 3 == 1) {
    auto now = cg::coalesced_threads();
    if (now.thread_rank() == 0) count[threadIdx.x / 32] = atomicAdd(count + 7, now.size()) * 0 + now.size();
    first[threadIdx.x] = now.shfl((int)threadIdx.x, 2);
  }
}"""
    count, first = torch.zeros(8, dtype=torch.int32), torch.full((64,), -1, dtype=torch.int32)
    assert launched(GROUPS + source, block=64, args=(count, first)).fault is None
    lanes = [[t for t in range(w, w + 32) if t % 3 == 1] for w in (0, 32)]
    assert count.tolist() == [len(lanes[0]), len(lanes[1]), 0, 0, 0, 0, 0, len(lanes[0]) + len(lanes[1])]
    assert first.tolist() == [lanes[t // 32][2] if t % 3 == 1 else -1 for t in range(64)]


@pytest.mark.parametrize(
    ("old", "new", "kind", "line"),
    [
        ("block.sync();", "", "race", "part["),
        ("block.sync();", "if (block.thread_rank() < 40) block.sync();", "divergent barrier", "< 40"),
        ("i < n ? x[i] : 0.f", "x[i]", "out of bounds", "x[i]"),
    ],
)
def test_a_fault_with_groups_is_named_at_its_line(old, new, kind, line):
    source = (GROUPS + SUM).replace(old, new)
    report = launched(source, grid=4, block=256, args=(torch.ones(1000), torch.zeros(1), 1000))
    assert report.fault is not None and report.fault.kind == kind
    assert line in source.splitlines()[report.fault.line - 1]


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ("#include <cooperative_groups.h>", "", "needs a header", "namespace cg"),
        ("#include <cooperative_groups/reduce.h>\n#include <cooperative_groups/scan.h>", "", "'reduce'", "cg::reduce"),
        ("block.sync();", "cg::this_grid().sync();", "needs a cooperative launch", "this_grid().sync"),
        ("partition<32>", "partition<48>", "a tile has 1, 2, 4, 8, 16 or 32 threads", "partition<48>"),
    ],
)
def test_what_groups_cannot_do_is_said_at_its_line(old, new, said, line):
    with pytest.raises(kernelcheck.CompileError, match=said) as refused:
        kernelcheck.compile_cuda((GROUPS + SUM).replace(old, new))
    assert line in str(refused.value)


def test_numbers_become_16_bit_floats_in_each_direction():
    source = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__global__ void round_all(const float* x, half* near, half* zero, half* down, half* up, __nv_bfloat16* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  near[i] = __double2half((double)x[i]); zero[i] = __float2half_rz(x[i]);
  down[i] = __float2half_rd(x[i]); up[i] = __float2half_ru(x[i]); b[i] = __double2bfloat16((double)x[i]);
}"""
    torch.manual_seed(0)
    edges = [0.0, -0.0, 65504, 65519.9, 65520, 1e9, -1e9, 2**-25, 1.5 * 2**-24, 1 + 2**-11, 1 + 3 * 2**-11, -(2**-26)]
    x = torch.cat([torch.randn(500) * 10 ** torch.empty(500).uniform_(-9, 6), torch.tensor(edges)])
    near, zero, down, up = (torch.zeros(len(x), dtype=torch.float16) for _ in range(4))
    brain = torch.zeros(len(x), dtype=torch.bfloat16)
    assert launched(source, grid=5, block=128, args=(x, near, zero, down, up, brain, len(x))).fault is None
    assert near.equal(x.half()) and brain.equal(x.bfloat16())
    with np.errstate(over="ignore"):
        above = torch.from_numpy(np.nextafter(down.numpy(), np.float16(np.inf)))
    assert bool(((down.float() <= x) & (x <= up.float()) & ((down == up) | (above == up))).all())
    assert zero.equal(torch.where(x < 0, up, down))


def test_pairs_of_16_bit_floats_compute_as_two_numbers():
    source = """
#include <cuda_fp16.h>
__global__ void pairs(const half* x, half* out) {
  half2 a = __halves2half2(x[0], x[1]), b = make_half2(x[2], x[3]), m = __hmax2(a, b);
  out[0] = m.x; out[1] = m.y;
  a += -b; out[2] = __low2half(a); out[3] = __high2half(a);
  out[4] = h2exp(b).x; out[5] = hrcp(x[3]); out[6] = __hbgt2(m, b) ? 1.f : 0.f; out[7] = __hge2(m, b).y;
}"""
    x, out = torch.tensor([1.5, -2, 0.25, 4]).half(), torch.zeros(8).half()
    assert launched(source, block=1, args=(x, out)).fault is None
    expected = torch.tensor([1.5, 4, 1.25, -6, torch.tensor(0.25).exp(), 0.25, 0, 1]).half()
    assert out.equal(expected)


def test_functions_of_whole_numbers_and_roundings_are_cuda_s():
    source = """
__global__ void whole(const float* x, int* out, int* bits) {
  int i = threadIdx.x;
  out[i] = __float2int_rn(x[i]) + 7 * __float2int_rd(x[i]) + 49 * __double2int_ru((double)x[i]);
  if (i == 0) {
    bits[0] = __byte_perm(0x03020100, 0x07060504, 0x5140); bits[1] = __dp4a(0x01020304, (int)0xff02fe03, 5);
    bits[2] = __funnelshift_l(0x80000001u, 1u, 4); bits[3] = __usad(3u, 9u, 1u); bits[4] = __umul64hi(1ull << 63, 6ull);
  }
  int all = __reduce_xor_sync(0xffffffffu, (unsigned)i * 3);
  if (i == 5) bits[5] = all;
}"""
    x = torch.linspace(-9, 9, 32)
    out, bits = torch.zeros(32, dtype=torch.int32), torch.zeros(6, dtype=torch.int32)
    assert launched(source, args=(x, out, bits)).fault is None
    assert out.tolist() == (x.round() + 7 * x.floor() + 49 * x.ceil()).int().tolist()
    product = 5 + 4 * 3 + 3 * -2 + 2 * 2 + 1 * -1
    assert bits.tolist() == [0x05010400, product, 24, 7, 3, functools.reduce(operator.xor, range(0, 96, 3))]


STAGES = """
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
"""


def test_copies_that_run_beside_their_thread_arrive_at_the_wait():
    x, out = torch.randn(4, 64), torch.zeros(64)
    report = launched(STAGES, block=64, args=(x, out, 4))
    assert report.fault is None and report.loaded_bytes == 4 * x.numel()
    torch.testing.assert_close(out, x.flip(1).sum(0))
    primitives = launched(STAGES.replace("pipeline.h", "pipeline_primitives.h"), block=64, args=(x, out, 4))
    assert primitives.fault is None


@pytest.mark.parametrize(
    ("old", "new", "phrase", "line"),
    [
        ("prior(1)", "prior(2)", "is still copying (line 6): wait for it", "sum +="),
        ("    __pipeline_wait_prior(1);\n", "", "is still copying", "sum +="),
        ("__pipeline_commit();\n    __pipeline_wait", "__pipeline_wait", "is still copying", "sum +="),
        ("prior(1);\n    __syncthreads();", "prior(1);", "with no __syncthreads()", "__pipeline_memcpy_async(&stage"),
        ("(i + 1) % 2", "0", "begins a copy to `stage`[0] in shared memory, to which", "(more ? 0 : 4)"),
        ("more ? (i + 1) * 64 + t : 0], 4, more ? 0 : 4", "(i + 1) * 64 + t], 4", "out of bounds", "memcpy_async"),
        ("&x[t], 4", "&x[t], 3", "size_and_align == 4", "&x[t], 3"),
        ("&stage[0][t], &x[t]", "&x[t], &x[t]", "points into shared memory", "&x[t], &x[t]"),
        ("more ? 0 : 4", "8", "zfill <= size_and_align", "4, 8"),
        ("#include <cuda_pipeline.h>", "", "needs a header: write #include <cuda_pipeline.h>", "memcpy_async"),
    ],
)
def test_a_copy_that_is_used_before_the_wait_is_a_race_and_a_wrong_call_is_told(old, new, phrase, line):
    assert old in STAGES
    text = STAGES.replace(old, new)
    if "points into" in phrase:
        text = text.replace("const float* x", "float* x")
    with pytest.raises((kernelcheck.CudaFault, kernelcheck.CompileError), match=re.escape(phrase)) as caught:
        kernelcheck.compile_cuda(text)(grid=1, block=64, args=(torch.zeros(4, 64), torch.zeros(64), 4))
    assert line.strip("()") in str(caught.value)


@pytest.mark.parametrize(
    "copy",
    [
        "__pipeline_memcpy_async(&part[8 * t], &x[8 * t], 16);",
        "((float4*)part)[t] = ((const float4*)x)[t];",
        "for (int i = 0; i < 4; i++) ((int*)part)[4 * t + i] = ((const int*)x)[4 * t + i];",
    ],
)
def test_halves_of_shared_memory_that_came_by_fours_are_not_uninitialised(copy):
    source = f"""
#include <cuda_pipeline.h>
#include <cuda_fp16.h>
__global__ void turned(const __half* x, __half* out) {{
  __shared__ __align__(16) __half part[64];
  int t = threadIdx.x;
  if (t < 8) {{ {copy} }}
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  out[t] = part[63 - t];
}}"""
    x, out = torch.randn(64).half(), torch.zeros(64).half()
    assert launched(source, block=64, args=(x, out)).fault is None
    assert torch.equal(out, x.flip(0))


@pytest.mark.parametrize(("count", "wait", "kind"), [(4, True, None), (3, True, "uninitialised"), (4, False, "race")])
def test_what_was_written_byte_by_byte_is_looked_at_where_it_is_read_by_fours(count, wait, kind):
    source = f"""
__global__ void turned(const unsigned char* x, int* out) {{
  __shared__ __align__(4) unsigned char part[256];
  int t = threadIdx.x;
  for (int i = 0; i < {count}; i++) part[4 * t + i] = x[4 * t + i];
  {"__syncthreads();" if wait else ""}
  out[t] = ((int*)part)[63 - t];
}}"""
    x, out = torch.arange(256, dtype=torch.uint8), torch.zeros(64, dtype=torch.int32)
    fault = launched(source, block=64, args=(x, out)).fault
    assert fault is None if kind is None else kind in fault.kind
    assert kind or torch.equal(out, x.view(torch.int32).flip(0))


def test_a_name_that_no_kernel_has_is_told_beside_those_that_are_there():
    with pytest.raises(kernelcheck.CompileError, match="there is no kernel k; there is kk"):
        kernelcheck.compile_cuda("__global__ void kk(float* x){ }", "k")


NO_RETURN = """
__device__ __forceinline__ float largest(float v) {
  for (int by = 16; by > 0; by /= 2) v = fmaxf(v, __shfl_down_sync(0xffffffff, v, by));
}
__device__ float sign(float v) {
  if (v > 0) return 1;
  if (v < 0) return -1;
}
__global__ void all(const float* x, float* out) { out[threadIdx.x] = largest(x[threadIdx.x]); }
__global__ void each(const float* x, float* out) { out[threadIdx.x] = sign(x[threadIdx.x]); }
"""


def test_a_function_that_ends_without_its_return_is_told_at_its_line():
    x = torch.arange(32.0)
    fault = launched(NO_RETURN, name="all", args=(x, torch.zeros(32))).fault
    assert fault.kind == "undefined" and fault.line == 2 and "there is no `return`" in str(fault)
    fault = launched(NO_RETURN, name="each", args=(x, torch.zeros(32))).fault
    assert fault.kind == "undefined" and (fault.line, fault.thread) == (5, (0, 0, 0))
    assert launched(NO_RETURN, name="each", args=(x + 1, torch.zeros(32))).fault is None


TRAITS = """
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
"""


def test_a_template_may_ask_for_the_kind_of_its_types():
    for dtype, name, want in ((torch.float32, "float", 5), (torch.float64, "double", 10)):
        out = torch.zeros(32, dtype=dtype)
        assert launched(TRAITS, name=f"traits<{name}>", args=(out,)).fault is None and out.eq(want).all()


@pytest.mark.parametrize("arguments", ["float, float", "int, 4"])
def test_a_template_with_other_arguments_is_told_by_its_name(arguments):
    with pytest.raises(kernelcheck.CompileError, match=f"no kernel is traits<{arguments}>: its template takes other"):
        launched(TRAITS, name=f"traits<{arguments}>", args=(torch.zeros(32),))


PARTS = """
__global__ void parts(const unsigned* x, const unsigned* y, unsigned* out) {
  unsigned a = x[threadIdx.x], b = y[threadIdx.x], made[] = {
    __vadd4(a, b), __vsub4(a, b), __vsubss4(a, b), __vaddus4(a, b), __vmaxs4(a, b), __vminu4(a, b), __vcmpne4(a, b),
    __vsetgtu4(a, b), __vabsdiffu4(a, b), __vadd2(a, b), __vsubss2(a, b), __vcmpges2(a, b), __vneg2(a),
    __umul24(a & 255, b & 255),
  };
  for (int k = 0; k < 14; k++) out[threadIdx.x * 14 + k] = made[k];
}
"""


def test_the_parts_of_a_word_are_computed_with_by_themselves():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 2**32, (2, 32), dtype=np.uint32)
    x[:4], y[:4] = 0x7F80FF00, (0x80017FFF, 0x7F80FF00, 0, 0xFFFFFFFF)
    out = torch.zeros(32, 14, dtype=torch.uint32)
    report = launched(PARTS, args=(torch.from_numpy(x), torch.from_numpy(y), out))
    assert report.fault is None

    def words(parts, kind):
        return np.asarray(parts).astype(kind).view(np.uint32)

    (s, t), (u, v) = ([one.view(kind).astype(int) for one in (x, y)] for kind in (np.int8, np.uint8))
    (p, q), (g, h) = ([one.view(kind).astype(int) for one in (x, y)] for kind in (np.int16, np.uint16))
    want = [
        words(u + v, "u1"), words(u - v, "u1"), words(np.clip(s - t, -128, 127), "i1"),
        words(np.clip(u + v, 0, 255), "u1"), words(np.maximum(s, t), "i1"), words(np.minimum(u, v), "u1"),
        words(-(u != v).astype(int), "i1"), words(u > v, "u1"), words(abs(u - v), "u1"), words(g + h, "u2"),
        words(np.clip(p - q, -32768, 32767), "i2"), words(-(p >= q).astype(int), "i2"), words(-g, "u2"),
        (x & 255) * (y & 255),
    ]  # fmt: skip
    assert np.array_equal(out.numpy(), np.stack(want, 1))


def test_shared_memory_may_say_its_alignment_behind_its_word():
    source = """
__global__ void pairs(float* out) {
  __shared__ alignas(16) float part[64];
  part[threadIdx.x] = threadIdx.x; part[threadIdx.x + 32] = 1;
  __syncthreads();
  if (threadIdx.x < 16) reinterpret_cast<float4*>(out)[threadIdx.x] = reinterpret_cast<float4*>(part)[threadIdx.x];
}"""
    out = torch.zeros(64)
    assert launched(source, args=(out,)).fault is None
    assert out.tolist() == [*range(32), *[1] * 32]


@pytest.mark.parametrize(("text", "said"), [
    ("#include <cub/cub.cuh>", "a library for kernels that is not here"),
    ("#include <curand_kernel.h>", "a library for kernels that is not here"),
    ("#include <cuda/pipeline>", "a library for kernels that is not here"),
    ("#include <array>", "of the host's library"),
    ("__device__ void f() { auto pipe = cuda::make_pipeline(); }", "not cuda::make_pipeline"),
    ("__device__ float f(__nv_fp8_e4m3 x) { return float(x); }", "8-bit floats cannot run here"),
])  # fmt: skip
def test_a_library_that_is_not_here_is_refused_by_name(text, said):
    with pytest.raises(kernelcheck.CompileError, match=said):
        kernelcheck.compile_cuda(text + "\n__global__ void k(float* x) { x[0] = 1; }", "k")


def test_a_fault_on_shared_halves_counts_halves_however_wide_the_access():
    text = """
#include <cuda_fp16.h>
__global__ void turned(const __half* x, __half* out) {
  __shared__ __align__(16) __half part[128];
  if (threadIdx.x < 16) ((uint4*)part)[threadIdx.x] = ((const uint4*)x)[threadIdx.x];
  out[threadIdx.x] = part[127 - threadIdx.x];
}"""
    x, out = torch.randn(128).half(), torch.zeros(128).half()
    fault = kernelcheck.compile_cuda(text).check(1, 128, (x, out)).fault
    assert (fault.kind, fault.array) == ("race", "part") and fault.element == 114  # thread 14 writes 112 to 119


def test_an_endless_loop_without_accesses_is_named_by_its_own_line():
    text = """
__global__ void waits(float* x) {
  x[threadIdx.x] = 1;
  __syncthreads();
  int i = 0;
  while (i < 1)
    i *= 2;
  x[0] = 2;
}"""
    fault = kernelcheck.compile_cuda(text).check(1, 32, (torch.zeros(32),), limit=0.3).fault
    assert fault.kind == "endless" and fault.line in (6, 7)


FOUR = """
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
"""


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_structure_that_a_function_returns_is_seen_where_it_is_stored(size):
    x, out = torch.arange(32.0 * size), torch.zeros(32 * size)
    kernel = kernelcheck.compile_cuda(FOUR, f"turned<{size}>")
    report = kernel.check(1, 32, (x, out), 32 * size * 4)
    assert report.fault is None and out.view(32, size).equal(x.view(32, size).flip(0))
    assert report.stored_bytes == 32 * size * 4
    fault = kernel.check(1, 32, (x, out[:-1]), 32 * size * 4).fault
    assert (fault.kind, fault.line, fault.array) == ("out of bounds", 11, "out")
    race = kernelcheck.compile_cuda(FOUR.replace("__syncthreads();", ""), f"turned<{size}>")
    assert race.check(1, 32, (x, out), 32 * size * 4).fault.kind in ("race", "uninitialised shared")
