// What the text of a .cu file needs to be C++: CUDA's words, types and functions. runtime.cpp runs what comes out.
// Names of its own begin with kc_ or KC_.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fenv.h>
#include <math.h>
#include <type_traits>
#include <utility>

#define KC_PLAIN __attribute__((noinline, no_sanitize("thread")))  // accesses inside are not looked at
#define KC_HERE static inline __attribute__((always_inline))       // accesses inside are at the caller's line
#define KC_JOIN2(a, b) a##b
#define KC_JOIN(a, b) KC_JOIN2(a, b)

#define __global__ __attribute__((flatten))  // g++ has no hook where a call's result, a structure, goes to memory
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
#define __shared__ static __thread char KC_JOIN(kc_pad_, __COUNTER__)[256] __attribute__((used)); static __thread __attribute__((used, aligned(16)))
static const int warpSize = 32;
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
uint3 kc_thread() __attribute__((const));
uint3 kc_block() __attribute__((const));
uint3 kc_block_dim() __attribute__((const));
uint3 kc_grid_dim() __attribute__((const));
void kc_atomic(void* p, int size);
void kc_copy(void* to, const void* from, int size);
void kc_move(void* to, const void* from, long size);
void kc_set(void* to, int value, long size);
int kc_barrier(int place, int line, int value, int how);
const uint64_t* kc_warp(unsigned mask, uint64_t value, int how, int line);
void kc_takes(int lane, int line);
unsigned kc_lane();
unsigned kc_active(int line);
int kc_space(const void* p);
size_t kc_shared_offset(const void* p);
void kc_fence();
long long kc_clock();
int kc_printf(const char* form, ...) __attribute__((format(printf, 1, 2)));
void kc_stop(const char* kind, const char* text, int line) __attribute__((noreturn));
extern char kc_dynamic[];
}

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
#define threadIdx (kc_thread())
#define blockIdx (kc_block())
#define blockDim (kc_block_dim())
#define gridDim (kc_grid_dim())

// A vector is copied as a whole, so that a load of 16 bytes counts as one.
#define KC_COPIES(name) \
  name() = default; \
  __attribute__((always_inline)) name(const name& o) { kc_copy(this, &o, sizeof *this); } \
  __attribute__((always_inline)) name& operator=(const name& o) { kc_copy(this, &o, sizeof *this); return *this; }
#define KC_VECTOR(T, name, size2, size4) \
  struct name##1 { T x; }; \
  KC_HERE name##1 make_##name##1(T a) { return name##1{a}; } \
  struct __align__(size2) name##2 { T x, y; KC_COPIES(name##2) name##2(T a, T b) : x(a), y(b) {} }; \
  struct __align__(size4) name##4 { T x, y, z, w; KC_COPIES(name##4) name##4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {} }; \
  KC_HERE name##2 make_##name##2(T a, T b) { return name##2(a, b); } \
  KC_HERE name##4 make_##name##4(T a, T b, T c, T d) { return name##4(a, b, c, d); }
#define KC_THREE(T, name) struct name##3 { T x, y, z; }; KC_HERE name##3 make_##name##3(T a, T b, T c) { return name##3{a, b, c}; }
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef long long longlong;
typedef unsigned long ulong; typedef unsigned long long ulonglong;
KC_VECTOR(float, float, 8, 16) KC_VECTOR(int, int, 8, 16) KC_VECTOR(unsigned, uint, 8, 16)
KC_VECTOR(double, double, 16, 16) KC_VECTOR(short, short, 4, 8) KC_VECTOR(signed char, char, 2, 4)
KC_VECTOR(unsigned char, uchar, 2, 4) KC_VECTOR(unsigned short, ushort, 4, 8) KC_VECTOR(long long, longlong, 16, 16)
KC_VECTOR(long, long, 16, 16) KC_VECTOR(unsigned long, ulong, 16, 16) KC_VECTOR(unsigned long long, ulonglong, 16, 16)
KC_THREE(float, float) KC_THREE(int, int) KC_THREE(double, double) KC_THREE(short, short) KC_THREE(signed char, char)
KC_THREE(unsigned char, uchar) KC_THREE(unsigned short, ushort) KC_THREE(long long, longlong) KC_THREE(long, long)
KC_THREE(unsigned long, ulong) KC_THREE(unsigned long long, ulonglong)
KC_HERE uint3 make_uint3(unsigned a, unsigned b, unsigned c) { return uint3{a, b, c}; }

// mathematics that <math.h> lacks
KC_HERE uint32_t kc_bits(float f) { uint32_t u; __builtin_memcpy(&u, &f, 4); return u; }
KC_HERE float kc_float(uint32_t u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
template <class A, class B, class = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>>
KC_HERE std::common_type_t<A, B> min(A a, B b) { typedef std::common_type_t<A, B> T; return T(b) < T(a) ? T(b) : T(a); }
template <class A, class B, class = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value>>
KC_HERE std::common_type_t<A, B> max(A a, B b) { typedef std::common_type_t<A, B> T; return T(a) < T(b) ? T(b) : T(a); }
KC_HERE float rsqrtf(float x) { return 1 / sqrtf(x); }
KC_HERE double rsqrt(double x) { return 1 / sqrt(x); }
KC_HERE float rsqrt(float x) { return rsqrtf(x); }
KC_HERE float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
KC_HERE float normcdff(float x) { return 0.5f * erfcf(-x * 0.707106781f); }
KC_HERE float __fdividef(float a, float b) { return a / b; }
KC_HERE float __frcp_rn(float a) { return 1 / a; }
KC_HERE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
KC_HERE double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
KC_HERE float __fsqrt_rn(float a) { return sqrtf(a); }
KC_HERE double __dsqrt_rn(double a) { return sqrt(a); }
KC_HERE float __frsqrt_rn(float a) { return rsqrtf(a); }
// the processor rounds as it is told: to nearest, towards zero, down, up; volatile, so that nothing moves out of between
#define KC_TOWARDS(way, T, head, result) \
  KC_PLAIN inline T head { fesetround(way); volatile T r = result; fesetround(FE_TONEAREST); return r; }
#define KC_WAYS(each, ...) each(rz, FE_TOWARDZERO, __VA_ARGS__) each(rd, FE_DOWNWARD, __VA_ARGS__) each(ru, FE_UPWARD, __VA_ARGS__)
#define KC_ROUNDED(end, way, T, V, name, op) KC_TOWARDS(way, T, name##_##end(volatile T a, volatile T b), a op b)
#define KC_CAST(end, way, T, V, name) KC_TOWARDS(way, T, name##_##end(volatile V a), T(a))
#define KC_FURTHER(end, way, T, f, sum, s) \
  KC_TOWARDS(way, T, __##f##sqrt_##end(volatile T a), sqrt##s(a)) KC_TOWARDS(way, T, __##f##rcp_##end(volatile T a), 1 / a) \
  KC_TOWARDS(way, T, __##sum##_##end(volatile T a, volatile T b, volatile T c), fma##s(a, b, c))
KC_WAYS(KC_FURTHER, float, f, fmaf, f) KC_WAYS(KC_FURTHER, double, d, fma, )
#define KC_ROUNDS(T, letter, name, op) \
  KC_HERE T __##letter##name##_rn(T a, T b) { return a op b; } KC_WAYS(KC_ROUNDED, T, T, __##letter##name, op)
KC_ROUNDS(float, f, add, +) KC_ROUNDS(float, f, sub, -) KC_ROUNDS(float, f, mul, *) KC_ROUNDS(float, f, div, /)
KC_ROUNDS(double, d, add, +) KC_ROUNDS(double, d, sub, -) KC_ROUNDS(double, d, mul, *) KC_ROUNDS(double, d, div, /)
KC_HERE double __drcp_rn(double a) { return 1 / a; }
KC_HERE float __double2float_rn(double a) { return float(a); }
KC_WAYS(KC_CAST, float, double, __double2float)
KC_WAYS(KC_CAST, float, int, __int2float) KC_WAYS(KC_CAST, float, unsigned, __uint2float)
KC_WAYS(KC_CAST, float, long long, __ll2float) KC_WAYS(KC_CAST, float, unsigned long long, __ull2float)
KC_WAYS(KC_CAST, double, long long, __ll2double) KC_WAYS(KC_CAST, double, unsigned long long, __ull2double)
#define KC_WHOLE_OF(T, from, whole, to) \
  KC_HERE whole __##from##2##to##_rn(T a) { return (whole)rint(a); } \
  KC_HERE whole __##from##2##to##_rz(T a) { return (whole)a; } \
  KC_HERE whole __##from##2##to##_rd(T a) { return (whole)floor(a); } \
  KC_HERE whole __##from##2##to##_ru(T a) { return (whole)ceil(a); } \
  KC_HERE T __##to##2##from##_rn(whole a) { return T(a); }
#define KC_WHOLES(T, from) \
  KC_WHOLE_OF(T, from, int, int) KC_WHOLE_OF(T, from, unsigned, uint) \
  KC_WHOLE_OF(T, from, long long, ll) KC_WHOLE_OF(T, from, unsigned long long, ull)
KC_WHOLES(float, float) KC_WHOLES(double, double)
KC_HERE int __float_as_int(float a) { return int(kc_bits(a)); }
KC_HERE unsigned __float_as_uint(float a) { return kc_bits(a); }
KC_HERE float __int_as_float(int a) { return kc_float(uint32_t(a)); }
KC_HERE float __uint_as_float(unsigned a) { return kc_float(a); }
KC_HERE long long __double_as_longlong(double d) { long long v; __builtin_memcpy(&v, &d, 8); return v; }
KC_HERE double __longlong_as_double(long long v) { double d; __builtin_memcpy(&d, &v, 8); return d; }
KC_HERE int __popc(unsigned v) { return __builtin_popcount(v); }
KC_HERE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
KC_HERE int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
KC_HERE int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
KC_HERE int __ffs(int v) { return __builtin_ffs(v); }
KC_HERE int __ffsll(long long v) { return __builtin_ffsll(v); }
KC_HERE unsigned __brev(unsigned v) { unsigned r = 0; for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i); return r; }
KC_HERE unsigned long long __brevll(unsigned long long v) { return (unsigned long long)__brev(unsigned(v)) << 32 | __brev(unsigned(v >> 32)); }
KC_HERE unsigned __fns(unsigned mask, unsigned base, int offset) {  // the bit number `offset` that is set, from `base` on
  int at = int(base), left = offset < 0 ? -offset : offset, step = offset > 0 ? 1 : offset < 0 ? -1 : 32;
  for (left -= !!left; at >= 0 && at < 32; at += step) if ((mask >> at & 1) && !left--) return unsigned(at);
  return ~0u;
}
KC_HERE int __rhadd(int a, int b) { return int(((long long)a + b + 1) >> 1); }
KC_HERE unsigned __uhadd(unsigned a, unsigned b) { return unsigned(((unsigned long long)a + b) >> 1); }
KC_HERE unsigned __urhadd(unsigned a, unsigned b) { return unsigned(((unsigned long long)a + b + 1) >> 1); }
KC_HERE int __double2hiint(double d) { return int(__double_as_longlong(d) >> 32); }
KC_HERE int __double2loint(double d) { return int(__double_as_longlong(d)); }
KC_HERE double __hiloint2double(int high, int low) { return __longlong_as_double((long long)((unsigned long long)unsigned(high) << 32 | unsigned(low))); }
KC_HERE unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
KC_HERE unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }
KC_HERE long long llmin(long long a, long long b) { return a < b ? a : b; }
KC_HERE long long llmax(long long a, long long b) { return a > b ? a : b; }
KC_HERE unsigned long long ullmin(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
KC_HERE unsigned long long ullmax(unsigned long long a, unsigned long long b) { return a > b ? a : b; }
KC_HERE int __mul24(int a, int b) { return a * b; }
KC_HERE unsigned __umul24(unsigned a, unsigned b) { return a * b; }
KC_HERE int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
KC_HERE unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
KC_HERE long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
KC_HERE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
KC_HERE unsigned __sad(int a, int b, unsigned c) { return unsigned(a < b ? b - a : a - b) + c; }
KC_HERE unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
KC_HERE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) { return unsigned(((uint64_t(high) << 32 | low) << (by & 31)) >> 32); }
KC_HERE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) { return unsigned((uint64_t(high) << 32 | low) >> (by & 31)); }
KC_HERE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) { return by < 32 ? __funnelshift_l(low, high, by) : low; }
KC_HERE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) { return by < 32 ? __funnelshift_r(low, high, by) : high; }
KC_HERE unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
  uint64_t both = uint64_t(b) << 32 | a; unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    unsigned one = which >> 4 * i & 15, byte = unsigned(both >> 8 * (one & 7)) & 255;
    r |= (one & 8 ? byte >> 7 ? 255u : 0u : byte) << 8 * i;
  }
  return r;
}
KC_HERE int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += int((signed char)(a >> 8 * i)) * (signed char)(b >> 8 * i);
  return c;
}
KC_HERE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}
#define KC_DP2A(T, half, byte, name, from) \
  KC_HERE T name(T a, T b, T c) { for (int i = 0; i < 2; i++) c += T((half)(a >> 16 * i)) * T((byte)(b >> 8 * (i + from))); return c; }
KC_DP2A(int, short, signed char, __dp2a_lo, 0) KC_DP2A(unsigned, unsigned short, unsigned char, __dp2a_lo, 0)
KC_DP2A(int, short, signed char, __dp2a_hi, 2) KC_DP2A(unsigned, unsigned short, unsigned char, __dp2a_hi, 2)
// the two halves or four bytes of a word, each by itself
template <class T, class F> KC_HERE unsigned kc_each(unsigned a, unsigned b, F f) {
  unsigned r = 0; constexpr int bits = 8 * sizeof(T); constexpr unsigned all = (1u << bits) - 1;
  for (int i = 0; i < 32; i += bits) r |= (unsigned(f((long long)T(a >> i), (long long)T(b >> i))) & all) << i;
  return r;
}
template <class T> KC_HERE long long kc_within(long long v) {
  const long long half = 1ll << (8 * sizeof(T) - 1), least = T(-1) < T(0) ? -half : 0, most = least + 2 * half - 1;
  return v < least ? least : v > most ? most : v;
}
template <class T> KC_HERE unsigned kc_total(unsigned v) { unsigned r = 0; for (unsigned i = 0; i < 32; i += 8 * sizeof(T)) r += T(v >> i); return r; }
#define KC_EACH(name, T, value) KC_HERE unsigned __v##name(unsigned a, unsigned b) { \
    return kc_each<T>(a, b, [](long long x, long long y) -> long long { (void)y; return value; }); }
#define KC_COMPARED(name, n, T, op) KC_EACH(cmp##name##n, T, x op y ? -1 : 0) KC_EACH(set##name##n, T, x op y)
#define KC_PARTS(n, S, U) \
  KC_EACH(add##n, U, x + y) KC_EACH(addss##n, S, kc_within<S>(x + y)) KC_EACH(addus##n, U, kc_within<U>(x + y)) \
  KC_EACH(sub##n, U, x - y) KC_EACH(subss##n, S, kc_within<S>(x - y)) KC_EACH(subus##n, U, kc_within<U>(x - y)) \
  KC_EACH(maxs##n, S, x > y ? x : y) KC_EACH(maxu##n, U, x > y ? x : y) KC_EACH(absdiffs##n, S, x < y ? y - x : x - y) \
  KC_EACH(mins##n, S, x < y ? x : y) KC_EACH(minu##n, U, x < y ? x : y) KC_EACH(absdiffu##n, U, x < y ? y - x : x - y) \
  KC_COMPARED(eq, n, U, ==) KC_COMPARED(ne, n, U, !=) \
  KC_COMPARED(ges, n, S, >=) KC_COMPARED(gts, n, S, >) KC_COMPARED(les, n, S, <=) KC_COMPARED(lts, n, S, <) \
  KC_COMPARED(geu, n, U, >=) KC_COMPARED(gtu, n, U, >) KC_COMPARED(leu, n, U, <=) KC_COMPARED(ltu, n, U, <) \
  KC_EACH(haddu##n, U, (x + y) >> 1) KC_EACH(avgu##n, U, (x + y + 1) >> 1) \
  KC_HERE unsigned __vsads##n(unsigned a, unsigned b) { return kc_total<U>(__vabsdiffs##n(a, b)); } \
  KC_HERE unsigned __vsadu##n(unsigned a, unsigned b) { return kc_total<U>(__vabsdiffu##n(a, b)); } \
  KC_HERE unsigned __vabsss##n(unsigned a) { return kc_each<S>(a, 0, [](long long x, long long) { return kc_within<S>(x < 0 ? -x : x); }); } \
  KC_HERE unsigned __vneg##n(unsigned a) { return __vsub##n(0, a); } \
  KC_HERE unsigned __vnegss##n(unsigned a) { return __vsubss##n(0, a); } \
  KC_HERE unsigned __vabs##n(unsigned a) { return __vabsdiffs##n(a, 0); }
KC_PARTS(2, short, unsigned short) KC_PARTS(4, signed char, unsigned char)
// the instructions for dynamic programming: of 32 bits, and of two halves
#define KC_OF_THREE(T, type, add, max, min) \
  KC_HERE T __vimax3_##type(T a, T b, T c) { return max(max(a, b), c); } KC_HERE T __vimin3_##type(T a, T b, T c) { return min(min(a, b), c); } \
  KC_HERE T __viaddmax_##type(T a, T b, T c) { return max(add(a, b), c); } KC_HERE T __viaddmin_##type(T a, T b, T c) { return min(add(a, b), c); }
#define KC_AT_LEAST_0(T, type, add, max, min) KC_OF_THREE(T, type, add, max, min) \
  KC_HERE T __vimax_##type##_relu(T a, T b) { return max(max(a, b), T(0)); } KC_HERE T __vimin_##type##_relu(T a, T b) { return max(min(a, b), T(0)); } \
  KC_HERE T __vimax3_##type##_relu(T a, T b, T c) { return max(__vimax3_##type(a, b, c), T(0)); } \
  KC_HERE T __vimin3_##type##_relu(T a, T b, T c) { return max(__vimin3_##type(a, b, c), T(0)); } \
  KC_HERE T __viaddmax_##type##_relu(T a, T b, T c) { return max(__viaddmax_##type(a, b, c), T(0)); } \
  KC_HERE T __viaddmin_##type##_relu(T a, T b, T c) { return max(__viaddmin_##type(a, b, c), T(0)); }
template <class T> KC_HERE T kc_sum(T a, T b) { return T(unsigned(a) + unsigned(b)); }
KC_AT_LEAST_0(int, s32, kc_sum, max, min) KC_OF_THREE(unsigned, u32, kc_sum, max, min)
KC_AT_LEAST_0(unsigned, s16x2, __vadd2, __vmaxs2, __vmins2) KC_OF_THREE(unsigned, u16x2, __vadd2, __vmaxu2, __vminu2)
KC_HERE float norm3df(float a, float b, float c) { return sqrtf(a * a + b * b + c * c); }
KC_HERE float norm4df(float a, float b, float c, float d) { return sqrtf(a * a + b * b + c * c + d * d); }
KC_HERE float rhypotf(float a, float b) { return 1 / hypotf(a, b); }
KC_HERE float rcbrtf(float a) { return 1 / cbrtf(a); }
KC_HERE float sinpif(float a) { return float(sin(3.141592653589793 * fmod(a, 2.0))); }
KC_HERE float cospif(float a) { return float(cos(3.141592653589793 * fmod(a, 2.0))); }
KC_HERE void sincospif(float a, float* s, float* c) { *s = sinpif(a); *c = cospif(a); }
KC_HERE double sinpi(double a) { return sin(3.141592653589793 * fmod(a, 2.0)); }
KC_HERE double cospi(double a) { return cos(3.141592653589793 * fmod(a, 2.0)); }
KC_HERE void sincospi(double a, double* s, double* c) { *s = sinpi(a); *c = cospi(a); }
template <class T> KC_HERE T kc_norm(int n, const T* p) { T sum = 0; for (int i = 0; i < n; i++) sum += p[i] * p[i]; return T(sqrt(sum)); }
KC_HERE float normf(int n, const float* p) { return kc_norm(n, p); }
KC_HERE double norm(int n, const double* p) { return kc_norm(n, p); }
KC_HERE float rnormf(int n, const float* p) { return 1 / kc_norm(n, p); }
KC_HERE double rnorm(int n, const double* p) { return 1 / kc_norm(n, p); }
KC_HERE float rnorm3df(float a, float b, float c) { return 1 / norm3df(a, b, c); }
KC_HERE float rnorm4df(float a, float b, float c, float d) { return 1 / norm4df(a, b, c, d); }
KC_HERE double norm3d(double a, double b, double c) { return sqrt(a * a + b * b + c * c); }
KC_HERE double norm4d(double a, double b, double c, double d) { return sqrt(a * a + b * b + c * c + d * d); }
KC_HERE double rnorm3d(double a, double b, double c) { return 1 / norm3d(a, b, c); }
KC_HERE double rnorm4d(double a, double b, double c, double d) { return 1 / norm4d(a, b, c, d); }
KC_HERE double rhypot(double a, double b) { return 1 / hypot(a, b); }
KC_HERE double rcbrt(double a) { return 1 / cbrt(a); }
KC_HERE double normcdf(double a) { return 0.5 * erfc(-a * 0.7071067811865476); }
KC_PLAIN inline double erfcx(double x) {  // its asymptotic series where erfc has no digits left
  double s = 1 / (2 * x * x);
  return x < 25 ? exp(x * x) * erfc(x) : 0.5641895835477563 / x * (1 - s * (1 - 3 * s * (1 - 5 * s)));
}
KC_PLAIN inline double erfcinv(double y) {  // Abramowitz and Stegun, 26.2.23, then Halley's method
  if (y > 1) return -erfcinv(2 - y);
  if (!(y > 0)) return y == 0 ? INFINITY : NAN;
  double t = sqrt(-2 * log(y / 2));
  double x = 0.7071067811865476 * (t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))));
  for (int i = 0; i < 3; i++) { double slope = 1.1283791670955126 * exp(-x * x), off = erfc(x) - y; if (slope > 0) x += off / (slope - x * off); }
  return x;
}
KC_PLAIN inline double erfinv(double y) {
  double x = erfcinv(1 - y);
  for (int i = 0; i < 2 && fabs(y) < 0.9; i++) x -= (erf(x) - y) / (1.1283791670955126 * exp(-x * x));
  return x;
}
KC_PLAIN inline double normcdfinv(double p) { return -1.4142135623730951 * erfcinv(2 * p); }
KC_PLAIN inline double kc_bessel_i(int order, double x) {  // its series: all terms have one sign
  double term = order ? x / 2 : 1, sum = term;
  for (int k = 1; k < 2000 && fabs(term) > 1e-17 * fabs(sum); k++) sum += term *= x * x / (4.0 * k * (k + order));
  return sum;
}
KC_HERE double cyl_bessel_i0(double x) { return kc_bessel_i(0, x); }
KC_HERE double cyl_bessel_i1(double x) { return kc_bessel_i(1, x); }
KC_HERE float cyl_bessel_i0f(float x) { return float(kc_bessel_i(0, x)); }
KC_HERE float cyl_bessel_i1f(float x) { return float(kc_bessel_i(1, x)); }
KC_HERE float erfcxf(float x) { return float(erfcx(x)); }
KC_HERE float erfinvf(float x) { return float(erfinv(x)); }
KC_HERE float erfcinvf(float x) { return float(erfcinv(x)); }
KC_HERE float normcdfinvf(float x) { return float(normcdfinv(x)); }
#define __builtin_assume(x) ((void)0)
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
template <class T> KC_HERE T __ldg(const T* p) { return *p; }
#define KC_CACHED(end) \
  template <class T> KC_HERE T __ld##end(const T* p) { return *p; } template <class T> KC_HERE void __st##end(T* p, T v) { *p = v; }
KC_CACHED(cg) KC_CACHED(cs) KC_CACHED(ca) KC_CACHED(lu) KC_CACHED(cv) KC_CACHED(wb) KC_CACHED(wt)
KC_HERE unsigned __isGlobal(const void* p) { return kc_space(p) == 2; }
KC_HERE unsigned __isShared(const void* p) { return kc_space(p) == 1; }
KC_HERE unsigned __isLocal(const void* p) { return kc_space(p) == 0; }
KC_HERE size_t __cvta_generic_to_shared(const void* p) { return kc_shared_offset(p); }
KC_HERE size_t __cvta_generic_to_global(const void* p) { return (size_t)p; }

// threads of a block and of a warp wait for one another
KC_HERE void kc_sync(int place, int line) { kc_barrier(place, line, 0, 0); }  // a call: a missing ; before it is told
#define __syncthreads() kc_sync(__COUNTER__, __LINE__)
#define __syncthreads_count(p) kc_barrier(__COUNTER__, __LINE__, !!(p), 0)
#define __syncthreads_or(p) (kc_barrier(__COUNTER__, __LINE__, !!(p), 0) != 0)
#define __syncthreads_and(p) kc_barrier(__COUNTER__, __LINE__, !!(p), 1)
#define __threadfence() kc_fence()
#define __threadfence_block() kc_fence()
#define __threadfence_system() kc_fence()
#define __activemask() kc_active(__LINE__)
#define __nanosleep(ns) kc_fence()
#define KC_ALL 0xffffffffu
KC_HERE unsigned kc_mask(unsigned mask = KC_ALL) { return mask; }
KC_HERE void kc_sync_warp(unsigned mask, int line) { kc_warp(mask, 0, 1, line); }
#define __syncwarp(...) kc_sync_warp(kc_mask(__VA_ARGS__), __LINE__)
template <class T> KC_PLAIN T kc_from(const uint64_t* given, int lane) { T r; __builtin_memcpy((void*)&r, given + lane, sizeof r); return r; }
template <class T> KC_PLAIN uint64_t kc_word(T v) {
  static_assert(sizeof(T) <= 8, "a shuffle moves values of at most 8 bytes");
  uint64_t w = 0; __builtin_memcpy(&w, &v, sizeof v); return w;
}
KC_PLAIN inline int kc_source(char kind, int lane, int by, int width) {
  int first = lane & -width, to = kind == 'i' ? first + (by & (width - 1)) : kind == 'u' ? lane - by : kind == 'd' ? lane + by : lane ^ by;
  return kind == 'u' ? (to < first ? lane : to) : to >= first + width ? lane : to;
}
template <class T> KC_PLAIN T kc_shuffle(char kind, int line, unsigned mask, T v, int by, int width = 32) {
  const uint64_t* given = kc_warp(mask, kc_word(v), 2, line); int lane = kc_source(kind, kc_lane(), by, width);
  kc_takes(lane, line);
  return kc_from<T>(given, lane);
}
#define __shfl_sync(...) kc_shuffle('i', __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) kc_shuffle('u', __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) kc_shuffle('d', __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) kc_shuffle('x', __LINE__, __VA_ARGS__)
KC_PLAIN inline unsigned kc_ballot(unsigned mask, int p, int line) {
  const uint64_t* given = kc_warp(mask, p != 0, 2, line); unsigned r = 0;
  for (int i = 0; i < 32; i++) if (mask >> i & 1) r |= unsigned(given[i] & 1) << i;
  return r;
}
#define __ballot_sync(mask, p) kc_ballot(mask, p, __LINE__)
#define __any_sync(mask, p) (kc_ballot(mask, p, __LINE__) != 0)
#define __all_sync(mask, p) (kc_ballot(mask, !(p), __LINE__) == 0)
template <class T, class F> KC_PLAIN T kc_reduce(unsigned mask, T v, int line, F f) {
  const uint64_t* given = kc_warp(mask, kc_word(v), 2, line); bool first = true; T r = v;
  for (int i = 0; i < 32; i++) if (mask >> i & 1) { T o = kc_from<T>(given, i); r = first ? o : f(r, o); first = false; }
  return r;
}
#define __reduce_add_sync(mask, v) kc_reduce(mask, v, __LINE__, [](auto a, auto b) { return a + b; })
#define __reduce_max_sync(mask, v) kc_reduce(mask, v, __LINE__, [](auto a, auto b) { return a > b ? a : b; })
#define __reduce_min_sync(mask, v) kc_reduce(mask, v, __LINE__, [](auto a, auto b) { return a < b ? a : b; })
template <class T> KC_PLAIN unsigned kc_match(unsigned mask, T v, int line) {
  uint64_t mine = kc_word(v); const uint64_t* given = kc_warp(mask, mine, 2, line); unsigned r = 0;
  for (int i = 0; i < 32; i++) if ((mask >> i & 1) && given[i] == mine) r |= 1u << i;
  return r;
}
#define __reduce_and_sync(mask, v) kc_reduce(mask, v, __LINE__, [](auto a, auto b) { return a & b; })
#define __reduce_or_sync(mask, v) kc_reduce(mask, v, __LINE__, [](auto a, auto b) { return a | b; })
#define __reduce_xor_sync(mask, v) kc_reduce(mask, v, __LINE__, [](auto a, auto b) { return a ^ b; })
#define __match_any_sync(mask, v) kc_match(mask, v, __LINE__)
template <class T> KC_PLAIN unsigned kc_match_all(unsigned mask, T v, int* same, int line) {
  *same = kc_match(mask, v, line) == (mask & kc_ballot(mask, 1, line)); return *same ? mask : 0;
}
#define __match_all_sync(mask, v, same) kc_match_all(mask, v, same, __LINE__)
KC_HERE int kc_uniform(unsigned mask, int p, int line) { unsigned yes = kc_ballot(mask, p, line); return yes == 0 || yes == kc_ballot(mask, 1, line); }
#define __uni_sync(mask, p) kc_uniform(mask, p, __LINE__)

// atomics
template <class T, class F> KC_PLAIN T kc_change(T* p, F f) { T old = *p; *p = f(old); return old; }
template <class T> struct kc_pair { static constexpr bool value = false; };  // of 16-bit floats
template <class T> struct kc_integer { static constexpr bool value = std::is_same<T, int>::value || std::is_same<T, unsigned>::value || std::is_same<T, unsigned long long>::value; };
#define KC_ATOMIC(name, allowed, result) \
  template <class T, class V> KC_HERE T name(T* p, V value) { \
    static_assert(allowed, #name " does not exist for this type"); \
    kc_atomic(p, sizeof(T)); \
    T v = T(value); return kc_change(p, [v](T old) -> T { return result; }); }
#define KC_FLOATS (kc_integer<T>::value || std::is_same<T, float>::value || std::is_same<T, double>::value || sizeof(T) == 2 || kc_pair<T>::value)
KC_ATOMIC(atomicAdd, KC_FLOATS, old + v)
KC_ATOMIC(atomicSub, kc_integer<T>::value, old - v)
KC_ATOMIC(atomicExch, kc_integer<T>::value || (std::is_same<T, float>::value), ((void)old, v))
KC_ATOMIC(atomicMax, (kc_integer<T>::value || std::is_same<T, long long>::value), old > v ? old : v)
KC_ATOMIC(atomicMin, (kc_integer<T>::value || std::is_same<T, long long>::value), old < v ? old : v)
KC_ATOMIC(atomicAnd, kc_integer<T>::value, old & v)
KC_ATOMIC(atomicOr, kc_integer<T>::value, old | v)
KC_ATOMIC(atomicXor, kc_integer<T>::value, old ^ v)
KC_ATOMIC(atomicInc, (std::is_same<T, unsigned>::value), old >= v ? 0 : old + 1)
KC_ATOMIC(atomicDec, (std::is_same<T, unsigned>::value), old == 0 || old > v ? v : old - 1)
// vectors change number by number
#define KC_ATOMIC_VECTOR(T, ...) KC_HERE T atomicAdd(T* p, T v) { T old = *p; float *to = (float*)p, *by = (float*)&v, *was = (float*)&old; \
  for (int i = 0; i < int(sizeof(T) / 4); i++) was[i] = atomicAdd(to + i, by[i]); return old; }
KC_ATOMIC_VECTOR(float2) KC_ATOMIC_VECTOR(float4)
#define KC_SCOPES(name) template <class... P> KC_HERE auto name##_block(P... p) { return name(p...); } \
  template <class... P> KC_HERE auto name##_system(P... p) { return name(p...); }
template <class T, class A, class B> KC_HERE T atomicCAS(T* p, A a, B b) {
  static_assert(kc_integer<T>::value || sizeof(T) == 2, "atomicCAS does not exist for this type");
  kc_atomic(p, sizeof(T));
  T is = T(a), to = T(b); return kc_change(p, [is, to](T old) -> T { return old == is ? to : old; });
}
KC_SCOPES(atomicAdd) KC_SCOPES(atomicSub) KC_SCOPES(atomicExch) KC_SCOPES(atomicMax) KC_SCOPES(atomicMin) KC_SCOPES(atomicCAS)
KC_SCOPES(atomicAnd) KC_SCOPES(atomicOr) KC_SCOPES(atomicXor) KC_SCOPES(atomicInc) KC_SCOPES(atomicDec)
#define clock64() kc_clock()
#define clock() kc_clock()
#define printf(...) kc_printf(__VA_ARGS__)
#define memset(to, value, size) kc_set(to, value, size)
#define memcpy(to, from, size) kc_move(to, from, size)
#define __trap() kc_stop("trap", "__trap()", __LINE__)
#define __brkpt() kc_stop("trap", "__brkpt()", __LINE__)
#undef assert
#define assert(x) ((x) ? (void)0 : kc_stop("assert", #x, __LINE__))
#define _ASSERT_H 1
#define main kc_users_main

// how Python learns a kernel's parameters, and how the runtime calls it
namespace kc {
template <class T> struct Kind {
  static const char* letter() {
    return std::is_same<T, bool>::value ? "b" : std::is_floating_point<T>::value ? "f" : std::is_unsigned<T>::value ? "u" : std::is_integral<T>::value || std::is_enum<T>::value ? "i" : "s"; }
  static constexpr int size = sizeof(T);
};
template <> struct Kind<void> { static const char* letter() { return "v"; } static constexpr int size = 1; };
#define KC_KIND(T, code, bytes) template <> struct Kind<T> { static const char* letter() { return code; } static constexpr int size = bytes; };
KC_KIND(float2, "f", 4) KC_KIND(float3, "f", 4) KC_KIND(float4, "f", 4) KC_KIND(int2, "i", 4) KC_KIND(int4, "i", 4) KC_KIND(uint2, "u", 4)
KC_KIND(uint4, "u", 4) KC_KIND(double2, "f", 8) KC_KIND(uchar4, "u", 1) KC_KIND(char4, "i", 1)
template <class P> void describe() {
  typedef std::remove_reference_t<P> V; typedef std::remove_pointer_t<V> E; typedef std::remove_cv_t<E> T;
  bool pointer = std::is_pointer<V>::value, whole = !pointer && sizeof(V) != Kind<T>::size;  // a vector is a structure
  fprintf(stdout, "%s%s %s %d\n", pointer ? "*" : "=", std::is_const<E>::value ? "c" : "", whole ? "s" : Kind<T>::letter(), whole ? int(sizeof(V)) : Kind<T>::size);
}
template <class... P> void describe(void (*)(P...)) { int each[] = {0, (describe<P>(), 0)...}; (void)each; }
template <class... P, size_t... I> KC_PLAIN void call(void (*f)(P...), void** a, std::integer_sequence<size_t, I...>) { f(*(std::decay_t<P>*)a[I]...); }
template <class... P> KC_PLAIN void call(void (*f)(P...), void** a) { call(f, a, std::make_index_sequence<sizeof...(P)>()); }
}
