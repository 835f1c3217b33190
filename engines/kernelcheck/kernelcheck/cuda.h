// What the text of a .cu file needs to be C++: CUDA's words, types and functions. runtime.cpp runs what comes out.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <math.h>
#include <type_traits>
#include <utility>

#define COURSE_PLAIN __attribute__((noinline, no_sanitize("thread")))  // accesses inside are not looked at
#define COURSE_HERE static inline __attribute__((always_inline))       // accesses inside are at the caller's line
#define COURSE_JOIN2(a, b) a##b
#define COURSE_JOIN(a, b) COURSE_JOIN2(a, b)

#define __global__
#define __device__
#define __host__
#define __managed__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__
#define __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __CUDACC__ 1
#define __CUDA_ARCH__ 800
// a variable of each thread of the system, so that arrays of templates work too; the pad tells one array from the next
#define __shared__ static __thread char COURSE_JOIN(course_pad_, __COUNTER__)[256] __attribute__((used)); static __thread __attribute__((used, aligned(16)))
#define warpSize 32
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.1920929e-7f
#define DBL_MAX 1.7976931348623157e308
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_PI_F 3.141592654f

extern "C" {
struct uint3 { unsigned x, y, z; };
uint3 course_thread() __attribute__((const));
uint3 course_block() __attribute__((const));
uint3 course_block_dim() __attribute__((const));
uint3 course_grid_dim() __attribute__((const));
void course_atomic(void* p, int size);
void course_copy(void* to, const void* from, int size);
void course_move(void* to, const void* from, long size);
void course_set(void* to, int value, long size);
int course_barrier(int place, int line, int value, int how);
const uint64_t* course_warp(unsigned mask, uint64_t value, int how, int line);
void course_takes(int lane, int line);
unsigned course_lane();
unsigned course_active(int line);
void course_fence();
long long course_clock();
int course_printf(const char* form, ...) __attribute__((format(printf, 1, 2)));
void course_stop(const char* kind, const char* text, int line) __attribute__((noreturn));
extern char course_dynamic[];
}

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
#define threadIdx (course_thread())
#define blockIdx (course_block())
#define blockDim (course_block_dim())
#define gridDim (course_grid_dim())

// A vector is copied as a whole, so that a load of 16 bytes counts as one.
#define COURSE_COPIES(name) \
  name() = default; \
  __attribute__((always_inline)) name(const name& o) { course_copy(this, &o, sizeof *this); } \
  __attribute__((always_inline)) name& operator=(const name& o) { course_copy(this, &o, sizeof *this); return *this; }
#define COURSE_VECTOR(T, name, size2, size4) \
  struct __align__(size2) name##2 { T x, y; COURSE_COPIES(name##2) name##2(T a, T b) : x(a), y(b) {} }; \
  struct name##3 { T x, y, z; }; \
  struct __align__(size4) name##4 { T x, y, z, w; COURSE_COPIES(name##4) name##4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {} }; \
  COURSE_HERE name##2 make_##name##2(T a, T b) { return name##2(a, b); } \
  COURSE_HERE name##3 make_##name##3(T a, T b, T c) { return name##3{a, b, c}; } \
  COURSE_HERE name##4 make_##name##4(T a, T b, T c, T d) { return name##4(a, b, c, d); }
#define uint3 course_uint3
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef long long longlong;
COURSE_VECTOR(float, float, 8, 16) COURSE_VECTOR(int, int, 8, 16) COURSE_VECTOR(unsigned, uint, 8, 16)
COURSE_VECTOR(double, double, 16, 16) COURSE_VECTOR(short, short, 4, 8) COURSE_VECTOR(signed char, char, 2, 4)
COURSE_VECTOR(unsigned char, uchar, 2, 4) COURSE_VECTOR(unsigned short, ushort, 4, 8) COURSE_VECTOR(long long, longlong, 16, 16)
#undef uint3

// 16-bit floats compute in float and round, as the hardware does for + - * /
COURSE_HERE uint32_t course_bits(float f) { uint32_t u; __builtin_memcpy(&u, &f, 4); return u; }
COURSE_HERE float course_float(uint32_t u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
struct course_half_format {
  static float wide(uint16_t h) {
    uint32_t sign = (h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return course_float(sign | 0x7f800000 | m << 13);
    float v = e ? course_float((e + 112) << 23 | m << 13) : m * 5.9604644775390625e-8f;
    return sign ? -v : v;
  }
  static uint16_t narrow(float f) {
    uint32_t u = course_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return sign | 0x7e00;
    if (a >= 0x477ff000) return sign | 0x7c00;
    if (a < 0x38800000) return sign | (course_bits(course_float(a) + 0.5f) - 0x3f000000);
    return sign | ((a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13);
  }
};
struct course_bfloat_format {
  static float wide(uint16_t h) { return course_float(uint32_t(h) << 16); }
  static uint16_t narrow(float f) {
    uint32_t u = course_bits(f);
    return f != f ? (u >> 16 | 64) : (u + 0x7fff + (u >> 16 & 1)) >> 16;
  }
};
template <class Format> struct course_16bit {
  uint16_t bits;
  course_16bit() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>> course_16bit(T v) : bits(Format::narrow(float(v))) {}
  operator float() const { return Format::wide(bits); }
#define COURSE_ASSIGN(op) course_16bit& operator op##=(course_16bit o) { return *this = course_16bit(float(*this) op float(o)); }
  COURSE_ASSIGN(+) COURSE_ASSIGN(-) COURSE_ASSIGN(*) COURSE_ASSIGN(/)
#define COURSE_BINARY(op) \
  friend course_16bit operator op(course_16bit a, course_16bit b) { return course_16bit(float(a) op float(b)); }
  COURSE_BINARY(+) COURSE_BINARY(-) COURSE_BINARY(*) COURSE_BINARY(/)
};
typedef course_16bit<course_half_format> __half; typedef __half half;
typedef course_16bit<course_bfloat_format> __nv_bfloat16; typedef __nv_bfloat16 nv_bfloat16;
#define COURSE_PAIR(T, name) \
  struct __align__(4) name { T x, y; COURSE_COPIES(name) name(T a, T b) : x(a), y(b) {} }; \
  COURSE_HERE name __halves2##name(T a, T b) { return name(a, b); } \
  COURSE_HERE name __hadd2(name a, name b) { return name(a.x + b.x, a.y + b.y); } \
  COURSE_HERE name __hsub2(name a, name b) { return name(a.x - b.x, a.y - b.y); } \
  COURSE_HERE name __hmul2(name a, name b) { return name(a.x * b.x, a.y * b.y); } \
  COURSE_HERE name __hfma2(name a, name b, name c) { return name(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y)); } \
  COURSE_HERE T __hadd(T a, T b) { return a + b; } \
  COURSE_HERE T __hsub(T a, T b) { return a - b; } \
  COURSE_HERE T __hmul(T a, T b) { return a * b; } \
  COURSE_HERE T __hdiv(T a, T b) { return a / b; } \
  COURSE_HERE T __hneg(T a) { return T(-float(a)); } \
  COURSE_HERE T __hmax(T a, T b) { return float(a) > float(b) ? a : b; } \
  COURSE_HERE T __hmin(T a, T b) { return float(a) < float(b) ? a : b; } \
  COURSE_HERE T __hfma(T a, T b, T c) { return T(fmaf(a, b, c)); } \
  COURSE_HERE bool __hgt(T a, T b) { return float(a) > float(b); } \
  COURSE_HERE bool __hlt(T a, T b) { return float(a) < float(b); } \
  COURSE_HERE T hexp(T a) { return T(expf(a)); } \
  COURSE_HERE T hsqrt(T a) { return T(sqrtf(a)); }
COURSE_PAIR(__half, __half2) COURSE_PAIR(__nv_bfloat16, __nv_bfloat162)
typedef __half2 half2; typedef __nv_bfloat162 nv_bfloat162;
COURSE_HERE __half __float2half(float f) { return __half(f); }
COURSE_HERE __half __float2half_rn(float f) { return __half(f); }
COURSE_HERE float __half2float(__half h) { return h; }
COURSE_HERE __half __int2half_rn(int i) { return __half(float(i)); }
COURSE_HERE __half2 __floats2half2_rn(float a, float b) { return __half2(__half(a), __half(b)); }
COURSE_HERE __half2 __float2half2_rn(float a) { return __half2(__half(a), __half(a)); }
COURSE_HERE __half2 __half2half2(__half a) { return __half2(a, a); }
COURSE_HERE float2 __half22float2(__half2 h) { return float2(h.x, h.y); }
COURSE_HERE float __low2float(__half2 h) { return h.x; }
COURSE_HERE float __high2float(__half2 h) { return h.y; }
COURSE_HERE __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
COURSE_HERE float __bfloat162float(__nv_bfloat16 h) { return h; }

// mathematics that <math.h> lacks
template <class A, class B, class = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>>
COURSE_HERE std::common_type_t<A, B> min(A a, B b) { typedef std::common_type_t<A, B> T; return T(b) < T(a) ? T(b) : T(a); }
template <class A, class B, class = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>>
COURSE_HERE std::common_type_t<A, B> max(A a, B b) { typedef std::common_type_t<A, B> T; return T(a) < T(b) ? T(b) : T(a); }
COURSE_HERE float rsqrtf(float x) { return 1 / sqrtf(x); }
COURSE_HERE double rsqrt(double x) { return 1 / sqrt(x); }
COURSE_HERE float rsqrt(float x) { return rsqrtf(x); }
COURSE_HERE float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
COURSE_HERE float normcdff(float x) { return 0.5f * erfcf(-x * 0.707106781f); }
COURSE_HERE float __fdividef(float a, float b) { return a / b; }
COURSE_HERE float __frcp_rn(float a) { return 1 / a; }
COURSE_HERE float __fadd_rn(float a, float b) { return a + b; }
COURSE_HERE float __fsub_rn(float a, float b) { return a - b; }
COURSE_HERE float __fmul_rn(float a, float b) { return a * b; }
COURSE_HERE float __fdiv_rn(float a, float b) { return a / b; }
COURSE_HERE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
COURSE_HERE float __fsqrt_rn(float a) { return sqrtf(a); }
COURSE_HERE float __frsqrt_rn(float a) { return rsqrtf(a); }
COURSE_HERE float __int2float_rn(int a) { return float(a); }
COURSE_HERE float __uint2float_rn(unsigned a) { return float(a); }
COURSE_HERE int __float2int_rn(float a) { return int(rintf(a)); }
COURSE_HERE int __float2int_rz(float a) { return int(a); }
COURSE_HERE int __float2int_rd(float a) { return int(floorf(a)); }
COURSE_HERE int __float2int_ru(float a) { return int(ceilf(a)); }
COURSE_HERE int __float_as_int(float a) { return int(course_bits(a)); }
COURSE_HERE unsigned __float_as_uint(float a) { return course_bits(a); }
COURSE_HERE float __int_as_float(int a) { return course_float(uint32_t(a)); }
COURSE_HERE float __uint_as_float(unsigned a) { return course_float(a); }
COURSE_HERE long long __double_as_longlong(double d) { long long v; __builtin_memcpy(&v, &d, 8); return v; }
COURSE_HERE double __longlong_as_double(long long v) { double d; __builtin_memcpy(&d, &v, 8); return d; }
COURSE_HERE int __popc(unsigned v) { return __builtin_popcount(v); }
COURSE_HERE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
COURSE_HERE int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
COURSE_HERE int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
COURSE_HERE int __ffs(int v) { return __builtin_ffs(v); }
COURSE_HERE int __ffsll(long long v) { return __builtin_ffsll(v); }
COURSE_HERE unsigned __brev(unsigned v) { unsigned r = 0; for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i); return r; }
COURSE_HERE int __mul24(int a, int b) { return a * b; }
COURSE_HERE int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
COURSE_HERE unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __exp2f(x) exp2f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __tanhf(x) tanhf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
template <class T> COURSE_HERE T __ldg(const T* p) { return *p; }
template <class T> COURSE_HERE T __ldcg(const T* p) { return *p; }
template <class T> COURSE_HERE T __ldcs(const T* p) { return *p; }
template <class T> COURSE_HERE void __stcg(T* p, T v) { *p = v; }
template <class T> COURSE_HERE void __stcs(T* p, T v) { *p = v; }

// threads of a block and of a warp wait for one another
#define __syncthreads() ((void)course_barrier(__COUNTER__, __LINE__, 0, 0))
#define __syncthreads_count(p) course_barrier(__COUNTER__, __LINE__, !!(p), 0)
#define __syncthreads_or(p) (course_barrier(__COUNTER__, __LINE__, !!(p), 0) != 0)
#define __syncthreads_and(p) course_barrier(__COUNTER__, __LINE__, !!(p), 1)
#define __threadfence() course_fence()
#define __threadfence_block() course_fence()
#define __threadfence_system() course_fence()
#define __activemask() course_active(__LINE__)
#define __nanosleep(ns) course_fence()
#define COURSE_ALL 0xffffffffu
#define __syncwarp(...) ((void)course_warp(course_mask(__VA_ARGS__), 0, 1, __LINE__))
COURSE_HERE unsigned course_mask(unsigned mask = COURSE_ALL) { return mask; }
template <class T> COURSE_PLAIN T course_from(const uint64_t* given, int lane) { T r; __builtin_memcpy((void*)&r, given + lane, sizeof r); return r; }
template <class T> COURSE_PLAIN uint64_t course_word(T v) {
  static_assert(sizeof(T) <= 8, "a shuffle moves values of at most 8 bytes");
  uint64_t w = 0; __builtin_memcpy(&w, &v, sizeof v); return w;
}
COURSE_PLAIN inline int course_source(char kind, int lane, int by, int width) {
  int first = lane & -width, to = kind == 'i' ? first + (by & (width - 1)) : kind == 'u' ? lane - by : kind == 'd' ? lane + by : lane ^ by;
  return kind == 'u' ? (to < first ? lane : to) : to >= first + width ? lane : to;
}
template <class T> COURSE_PLAIN T course_shuffle(char kind, int line, unsigned mask, T v, int by, int width = 32) {
  const uint64_t* given = course_warp(mask, course_word(v), 2, line); int lane = course_source(kind, course_lane(), by, width);
  course_takes(lane, line);
  return course_from<T>(given, lane);
}
#define __shfl_sync(...) course_shuffle('i', __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) course_shuffle('u', __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) course_shuffle('d', __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) course_shuffle('x', __LINE__, __VA_ARGS__)
COURSE_PLAIN inline unsigned course_ballot(unsigned mask, int p, int line) {
  const uint64_t* given = course_warp(mask, p != 0, 2, line); unsigned r = 0;
  for (int i = 0; i < 32; i++) if (mask >> i & 1) r |= unsigned(given[i] & 1) << i;
  return r;
}
#define __ballot_sync(mask, p) course_ballot(mask, p, __LINE__)
#define __any_sync(mask, p) (course_ballot(mask, p, __LINE__) != 0)
#define __all_sync(mask, p) (course_ballot(mask, !(p), __LINE__) == 0)
template <class T, class F> COURSE_PLAIN T course_reduce(unsigned mask, T v, int line, F f) {
  const uint64_t* given = course_warp(mask, course_word(v), 2, line); bool first = true; T r = v;
  for (int i = 0; i < 32; i++) if (mask >> i & 1) { T o = course_from<T>(given, i); r = first ? o : f(r, o); first = false; }
  return r;
}
#define __reduce_add_sync(mask, v) course_reduce(mask, v, __LINE__, [](auto a, auto b) { return a + b; })
#define __reduce_max_sync(mask, v) course_reduce(mask, v, __LINE__, [](auto a, auto b) { return a > b ? a : b; })
#define __reduce_min_sync(mask, v) course_reduce(mask, v, __LINE__, [](auto a, auto b) { return a < b ? a : b; })
template <class T> COURSE_PLAIN unsigned course_match(unsigned mask, T v, int line) {
  uint64_t mine = course_word(v); const uint64_t* given = course_warp(mask, mine, 2, line); unsigned r = 0;
  for (int i = 0; i < 32; i++) if ((mask >> i & 1) && given[i] == mine) r |= 1u << i;
  return r;
}
#define __match_any_sync(mask, v) course_match(mask, v, __LINE__)

// atomics
template <class T, class F> COURSE_PLAIN T course_change(T* p, F f) { T old = *p; *p = f(old); return old; }
template <class T> struct course_integer { static constexpr bool value = std::is_same<T, int>::value || std::is_same<T, unsigned>::value || std::is_same<T, unsigned long long>::value; };
#define COURSE_ATOMIC(name, allowed, result) \
  template <class T, class V> COURSE_HERE T name(T* p, V value) { \
    static_assert(allowed, #name " does not exist for this type"); \
    course_atomic(p, sizeof(T)); \
    T v = T(value); return course_change(p, [v](T old) -> T { return result; }); }
#define COURSE_FLOATS (course_integer<T>::value || std::is_same<T, float>::value || std::is_same<T, double>::value || sizeof(T) == 2 || std::is_same<T, __half2>::value)
COURSE_ATOMIC(atomicAdd, COURSE_FLOATS, old + v)
COURSE_ATOMIC(atomicSub, course_integer<T>::value, old - v)
COURSE_ATOMIC(atomicExch, course_integer<T>::value || (std::is_same<T, float>::value), ((void)old, v))
COURSE_ATOMIC(atomicMax, (course_integer<T>::value || std::is_same<T, long long>::value), old > v ? old : v)
COURSE_ATOMIC(atomicMin, (course_integer<T>::value || std::is_same<T, long long>::value), old < v ? old : v)
COURSE_ATOMIC(atomicAnd, course_integer<T>::value, old & v)
COURSE_ATOMIC(atomicOr, course_integer<T>::value, old | v)
COURSE_ATOMIC(atomicXor, course_integer<T>::value, old ^ v)
COURSE_ATOMIC(atomicInc, (std::is_same<T, unsigned>::value), old >= v ? 0 : old + 1)
COURSE_ATOMIC(atomicDec, (std::is_same<T, unsigned>::value), old == 0 || old > v ? v : old - 1)
#define atomicAdd_block atomicAdd
#define atomicAdd_system atomicAdd
template <class T, class A, class B> COURSE_HERE T atomicCAS(T* p, A a, B b) {
  static_assert(course_integer<T>::value || sizeof(T) == 2, "atomicCAS does not exist for this type");
  course_atomic(p, sizeof(T));
  T is = T(a), to = T(b); return course_change(p, [is, to](T old) -> T { return old == is ? to : old; });
}
#define clock64() course_clock()
#define clock() course_clock()
#define printf(...) course_printf(__VA_ARGS__)
#define memset(to, value, size) course_set(to, value, size)
#define memcpy(to, from, size) course_move(to, from, size)
#define __trap() course_stop("trap", "__trap()", __LINE__)
#undef assert
#define assert(x) ((x) ? (void)0 : course_stop("assert", #x, __LINE__))
#define _ASSERT_H 1
#define main course_users_main

// how Python learns a kernel's parameters, and how the runtime calls it
namespace course {
template <class T> struct Kind {
  static const char* letter() {
    return std::is_same<T, bool>::value ? "b" : std::is_floating_point<T>::value ? "f" : std::is_unsigned<T>::value ? "u" : std::is_integral<T>::value || std::is_enum<T>::value ? "i" : "s"; }
  static constexpr int size = sizeof(T);
};
template <> struct Kind<void> { static const char* letter() { return "v"; } static constexpr int size = 1; };
#define COURSE_KIND(T, code, bytes) template <> struct Kind<T> { static const char* letter() { return code; } static constexpr int size = bytes; };
COURSE_KIND(__half, "h", 2) COURSE_KIND(__half2, "h", 2) COURSE_KIND(__nv_bfloat16, "g", 2) COURSE_KIND(__nv_bfloat162, "g", 2)
COURSE_KIND(float2, "f", 4) COURSE_KIND(float3, "f", 4) COURSE_KIND(float4, "f", 4) COURSE_KIND(int2, "i", 4) COURSE_KIND(int4, "i", 4) COURSE_KIND(uint2, "u", 4)
COURSE_KIND(uint4, "u", 4) COURSE_KIND(double2, "f", 8) COURSE_KIND(uchar4, "u", 1) COURSE_KIND(char4, "i", 1)
template <class P> void describe() {
  typedef std::remove_reference_t<P> V; typedef std::remove_pointer_t<V> E; typedef std::remove_cv_t<E> T;
  fprintf(stdout, "%s%s %s %d\n", std::is_pointer<V>::value ? "*" : "=", std::is_const<E>::value ? "c" : "", Kind<T>::letter(), Kind<T>::size);
}
template <class... P> void describe(void (*)(P...)) { int each[] = {0, (describe<P>(), 0)...}; (void)each; }
template <class... P, size_t... I> COURSE_PLAIN void call(void (*f)(P...), void** a, std::integer_sequence<size_t, I...>) { f(*(std::decay_t<P>*)a[I]...); }
template <class... P> COURSE_PLAIN void call(void (*f)(P...), void** a) { call(f, a, std::make_index_sequence<sizeof...(P)>()); }
}
