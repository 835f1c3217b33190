// 16-bit floats: half and bfloat16, pairs of them, and their functions, as cuda_fp16.h and cuda_bf16.h name them.
// They compute in float and round, as the hardware does for + - * /
#pragma once

struct kc_half_format {
  static float wide(uint16_t h) {
    uint32_t sign = (h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return kc_float(sign | 0x7f800000 | m << 13);
    float v = e ? kc_float((e + 112) << 23 | m << 13) : m * 5.9604644775390625e-8f;
    return sign ? -v : v;
  }
  static uint16_t narrow(float f) {
    uint32_t u = kc_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return sign | 0x7e00;
    if (a >= 0x477ff000) return sign | 0x7c00;
    if (a < 0x38800000) return sign | (kc_bits(kc_float(a) + 0.5f) - 0x3f000000);
    return sign | ((a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13);
  }
};
struct kc_bfloat_format {
  static float wide(uint16_t h) { return kc_float(uint32_t(h) << 16); }
  static uint16_t narrow(float f) {
    uint32_t u = kc_bits(f);
    return f != f ? (u >> 16 | 64) : (u + 0x7fff + (u >> 16 & 1)) >> 16;
  }
};
template <class Format> struct kc_16bit {
  uint16_t bits;
  kc_16bit() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>> kc_16bit(T v) : bits(Format::narrow(float(v))) {}
  operator float() const { return Format::wide(bits); }
#define KC_ASSIGN(op) kc_16bit& operator op##=(kc_16bit o) { return *this = kc_16bit(float(*this) op float(o)); }
  KC_ASSIGN(+) KC_ASSIGN(-) KC_ASSIGN(*) KC_ASSIGN(/)
#define KC_BINARY(op) \
  friend kc_16bit operator op(kc_16bit a, kc_16bit b) { return kc_16bit(float(a) op float(b)); }
  KC_BINARY(+) KC_BINARY(-) KC_BINARY(*) KC_BINARY(/)
  friend kc_16bit operator-(kc_16bit a) { return kc_16bit(-float(a)); }
};
typedef kc_16bit<kc_half_format> __half; typedef __half half;
typedef kc_16bit<kc_bfloat_format> __nv_bfloat16; typedef __nv_bfloat16 nv_bfloat16;

// A number as a 16-bit float, rounded down (-1), up (1) or towards zero (0).
template <class T> KC_HERE T kc_towards(double v, int way) {
  T r = T(float(v));
  int step = way ? way : v < 0 ? 1 : -1;
  if (v != v || (step < 0 ? double(float(r)) <= v : double(float(r)) >= v)) return r;
  if (!(r.bits & 0x7fff)) r.bits = step < 0 ? 0x8001 : 1;
  else r.bits += (r.bits >> 15) == (step < 0) ? 1 : -1;
  return r;
}

// Functions of one type: `head` begins each, T is the type of the first argument, S that of the others. Those of half
// take what can become a half, as CUDA's do; those of bfloat16 take no other type first, since both are always there.
template <class T> struct kc_itself { typedef T type; };
#define KC_OF_1(head, T, name, result) head T name(T a) { return T(result); }
#define KC_OF_2(head, T, S, name, result) head T name(T a, S b) { return T(result); }
#define KC_COMPARES(head, T, S, name, op) \
  head bool __h##name(T a, S b) { return float(a) op float(b); } \
  head bool __h##name##u(T a, S b) { return isnan(float(a)) || isnan(float(b)) || float(a) op float(b); }
#define KC_FUNCTIONS(head, T, S) \
  KC_OF_2(head, T, S, __hadd, a + b) KC_OF_2(head, T, S, __hsub, a - b) KC_OF_2(head, T, S, __hmul, a * b) \
  KC_OF_2(head, T, S, __hdiv, a / b) KC_OF_2(head, T, S, __hadd_rn, a + b) KC_OF_2(head, T, S, __hsub_rn, a - b) \
  KC_OF_2(head, T, S, __hmul_rn, a * b) KC_OF_2(head, T, S, __hadd_sat, __saturatef(a + b)) \
  KC_OF_2(head, T, S, __hsub_sat, __saturatef(a - b)) KC_OF_2(head, T, S, __hmul_sat, __saturatef(a * b)) \
  KC_OF_2(head, T, S, __hmax, fmaxf(a, b)) KC_OF_2(head, T, S, __hmin, fminf(a, b)) \
  KC_OF_2(head, T, S, __hmax_nan, isnan(float(a)) || isnan(float(b)) ? NAN : fmaxf(a, b)) \
  KC_OF_2(head, T, S, __hmin_nan, isnan(float(a)) || isnan(float(b)) ? NAN : fminf(a, b)) \
  head T __hfma(T a, S b, S c) { return T(fmaf(a, b, c)); } \
  head T __hfma_sat(T a, S b, S c) { return T(__saturatef(fmaf(a, b, c))); } \
  head T __hfma_relu(T a, S b, S c) { return T(fmaxf(fmaf(a, b, c), 0)); } \
  head bool __hisnan(T a) { return isnan(float(a)); } \
  head int __hisinf(T a) { return isinf(float(a)) ? float(a) < 0 ? -1 : 1 : 0; } \
  KC_OF_1(head, T, __hneg, -float(a)) KC_OF_1(head, T, __habs, fabsf(a)) KC_OF_1(head, T, hceil, ceilf(a)) \
  KC_OF_1(head, T, hfloor, floorf(a)) KC_OF_1(head, T, hrint, rintf(a)) KC_OF_1(head, T, htrunc, truncf(a)) \
  KC_OF_1(head, T, hexp, expf(a)) KC_OF_1(head, T, hexp2, exp2f(a)) KC_OF_1(head, T, hexp10, powf(10, a)) \
  KC_OF_1(head, T, hlog, logf(a)) KC_OF_1(head, T, hlog2, log2f(a)) KC_OF_1(head, T, hlog10, log10f(a)) \
  KC_OF_1(head, T, hsin, sinf(a)) KC_OF_1(head, T, hcos, cosf(a)) KC_OF_1(head, T, htanh, tanhf(a)) \
  KC_OF_1(head, T, htanh_approx, tanhf(a)) KC_OF_1(head, T, hsqrt, sqrtf(a)) KC_OF_1(head, T, hrcp, 1 / float(a)) \
  KC_OF_1(head, T, hrsqrt, 1 / sqrtf(a)) \
  KC_COMPARES(head, T, S, eq, ==) KC_COMPARES(head, T, S, ne, !=) KC_COMPARES(head, T, S, lt, <) \
  KC_COMPARES(head, T, S, le, <=) KC_COMPARES(head, T, S, gt, >) KC_COMPARES(head, T, S, ge, >=)
KC_FUNCTIONS(KC_HERE, __half, __half)
KC_FUNCTIONS(template <class F> KC_HERE, kc_16bit<F>, typename kc_itself<kc_16bit<F>>::type)

// Pairs: each function does with both numbers what that of one number does.
#define KC_PAIR(T, name) \
  struct __align__(4) name { T x, y; KC_COPIES(name) name(T a, T b) : x(a), y(b) {} }; \
  KC_PAIR_OPERATOR(name, +) KC_PAIR_OPERATOR(name, -) KC_PAIR_OPERATOR(name, *) KC_PAIR_OPERATOR(name, /) \
  KC_HERE name operator-(name a) { return name(-a.x, -a.y); } \
  KC_HERE name __lowhigh2highlow(name a) { return name(a.y, a.x); } \
  KC_PAIR_2(name, __hadd2, __hadd) KC_PAIR_2(name, __hsub2, __hsub) KC_PAIR_2(name, __hmul2, __hmul) KC_PAIR_2(name, __h2div, __hdiv) \
  KC_PAIR_2(name, __hadd2_rn, __hadd) KC_PAIR_2(name, __hsub2_rn, __hsub) KC_PAIR_2(name, __hmul2_rn, __hmul) \
  KC_PAIR_2(name, __hadd2_sat, __hadd_sat) KC_PAIR_2(name, __hsub2_sat, __hsub_sat) KC_PAIR_2(name, __hmul2_sat, __hmul_sat) \
  KC_PAIR_2(name, __hmax2, __hmax) KC_PAIR_2(name, __hmin2, __hmin) KC_PAIR_2(name, __hmax2_nan, __hmax_nan) KC_PAIR_2(name, __hmin2_nan, __hmin_nan) \
  KC_PAIR_3(name, __hfma2, __hfma) KC_PAIR_3(name, __hfma2_sat, __hfma_sat) KC_PAIR_3(name, __hfma2_relu, __hfma_relu) \
  KC_PAIR_1(name, __hneg2, __hneg) KC_PAIR_1(name, __habs2, __habs) KC_PAIR_1(name, __hisnan2, __hisnan) \
  KC_PAIR_1(name, h2ceil, hceil) KC_PAIR_1(name, h2floor, hfloor) KC_PAIR_1(name, h2rint, hrint) KC_PAIR_1(name, h2trunc, htrunc) \
  KC_PAIR_1(name, h2exp, hexp) KC_PAIR_1(name, h2exp2, hexp2) KC_PAIR_1(name, h2exp10, hexp10) KC_PAIR_1(name, h2log, hlog) \
  KC_PAIR_1(name, h2log2, hlog2) KC_PAIR_1(name, h2log10, hlog10) KC_PAIR_1(name, h2sin, hsin) KC_PAIR_1(name, h2cos, hcos) \
  KC_PAIR_1(name, h2tanh, htanh) KC_PAIR_1(name, h2sqrt, hsqrt) KC_PAIR_1(name, h2rsqrt, hrsqrt) KC_PAIR_1(name, h2rcp, hrcp) \
  KC_PAIR_COMPARES(T, name, eq) KC_PAIR_COMPARES(T, name, ne) KC_PAIR_COMPARES(T, name, lt) KC_PAIR_COMPARES(T, name, le) \
  KC_PAIR_COMPARES(T, name, gt) KC_PAIR_COMPARES(T, name, ge)
#define KC_PAIR_OPERATOR(name, op) \
  KC_HERE name operator op(name a, name b) { return name(a.x op b.x, a.y op b.y); } \
  KC_HERE name& operator op##=(name& a, name b) { return a = a op b; }
#define KC_PAIR_1(name, of_two, of_one) KC_HERE name of_two(name a) { return name(of_one(a.x), of_one(a.y)); }
#define KC_PAIR_2(name, of_two, of_one) KC_HERE name of_two(name a, name b) { return name(of_one(a.x, b.x), of_one(a.y, b.y)); }
#define KC_PAIR_3(name, of_two, of_one) \
  KC_HERE name of_two(name a, name b, name c) { return name(of_one(a.x, b.x, c.x), of_one(a.y, b.y, c.y)); }
#define KC_PAIR_COMPARES(T, name, how) KC_PAIR_COMPARE(T, name, how) KC_PAIR_COMPARE(T, name, how##u)
#define KC_PAIR_COMPARE(T, name, how) \
  KC_HERE name __h##how##2(name a, name b) { return name(T(__h##how(a.x, b.x)), T(__h##how(a.y, b.y))); } \
  KC_HERE unsigned __h##how##2_mask(name a, name b) { return (__h##how(a.x, b.x) ? 0xffffu : 0) | (__h##how(a.y, b.y) ? 0xffff0000u : 0); } \
  KC_HERE bool __hb##how##2(name a, name b) { return __h##how(a.x, b.x) && __h##how(a.y, b.y); }
KC_PAIR(__half, __half2) KC_PAIR(__nv_bfloat16, __nv_bfloat162)
typedef __half2 half2; typedef __nv_bfloat162 nv_bfloat162;
KC_HERE half2 make_half2(half a, half b) { return half2(a, b); }
KC_HERE nv_bfloat162 make_bfloat162(nv_bfloat16 a, nv_bfloat16 b) { return nv_bfloat162(a, b); }

// Conversions, whose names hold the types: `half` or `bfloat16`
#define KC_CONVERTS(T, name, P, pair) \
  KC_HERE T __float2##name(float f) { return T(f); } \
  KC_HERE T __double2##name(double f) { return kc_from_double<T>(f); } \
  KC_HERE T __float2##name##_rn(float f) { return T(f); } \
  KC_HERE T __float2##name##_rz(float f) { return kc_towards<T>(f, 0); } \
  KC_HERE T __float2##name##_rd(float f) { return kc_towards<T>(f, -1); } \
  KC_HERE T __float2##name##_ru(float f) { return kc_towards<T>(f, 1); } \
  KC_HERE float __##name##2float(T h) { return h; } \
  KC_HERE P __float2##pair##_rn(float a) { return P(T(a), T(a)); } \
  KC_HERE P __floats2##pair##_rn(float a, float b) { return P(T(a), T(b)); } \
  KC_HERE P __float22##pair##_rn(float2 v) { return P(T(v.x), T(v.y)); } \
  KC_HERE float2 __##pair##2float2(P h) { return float2(h.x, h.y); } \
  KC_HERE P __##name##2##pair(T a) { return P(a, a); } \
  KC_HERE P __halves2##pair(T a, T b) { return P(a, b); } \
  KC_HERE T __low2##name(P h) { return h.x; } \
  KC_HERE T __high2##name(P h) { return h.y; } \
  KC_HERE P __low2##pair(P h) { return P(h.x, h.x); } \
  KC_HERE P __high2##pair(P h) { return P(h.y, h.y); } \
  KC_HERE P __lows2##pair(P a, P b) { return P(a.x, b.x); } \
  KC_HERE P __highs2##pair(P a, P b) { return P(a.y, b.y); } \
  KC_HERE float __low2float(P h) { return h.x; } \
  KC_HERE float __high2float(P h) { return h.y; } \
  KC_HERE short __##name##_as_short(T h) { return short(h.bits); } \
  KC_HERE unsigned short __##name##_as_ushort(T h) { return h.bits; } \
  KC_HERE T __short_as_##name(short v) { T h; h.bits = uint16_t(v); return h; } \
  KC_HERE T __ushort_as_##name(unsigned short v) { T h; h.bits = v; return h; } \
  KC_WHOLE(T, name, int, int) KC_WHOLE(T, name, unsigned, uint) KC_WHOLE(T, name, short, short) \
  KC_WHOLE(T, name, unsigned short, ushort) KC_WHOLE(T, name, long long, ll) KC_WHOLE(T, name, unsigned long long, ull)
#define KC_WHOLE(T, name, whole, word) \
  KC_HERE whole __##name##2##word##_rn(T h) { return (whole)rintf(h); } \
  KC_HERE whole __##name##2##word##_rz(T h) { return (whole)float(h); } \
  KC_HERE whole __##name##2##word##_rd(T h) { return (whole)floorf(h); } \
  KC_HERE whole __##name##2##word##_ru(T h) { return (whole)ceilf(h); } \
  KC_HERE T __##word##2##name##_rn(whole v) { return kc_from_double<T>(double(v)); } \
  KC_HERE T __##word##2##name##_rz(whole v) { return kc_towards<T>(double(v), 0); } \
  KC_HERE T __##word##2##name##_rd(whole v) { return kc_towards<T>(double(v), -1); } \
  KC_HERE T __##word##2##name##_ru(whole v) { return kc_towards<T>(double(v), 1); }
// rounded once: by way of a float whose last bit says that something was left out
template <class T> KC_HERE T kc_from_double(double v) {
  uint32_t u = kc_bits(float(v));
  if (v == v && double(kc_float(u)) != v) u = (u - (fabs(double(kc_float(u))) > fabs(v))) | 1;
  return T(kc_float(u));
}
KC_CONVERTS(__half, half, __half2, half2)
KC_CONVERTS(__nv_bfloat16, bfloat16, __nv_bfloat162, bfloat162)

template <> struct kc_pair<__half2> { static constexpr bool value = true; };
template <> struct kc_pair<__nv_bfloat162> { static constexpr bool value = true; };
namespace kc {
KC_KIND(__half, "h", 2) KC_KIND(__half2, "h", 2) KC_KIND(__nv_bfloat16, "g", 2) KC_KIND(__nv_bfloat162, "g", 2)
}
