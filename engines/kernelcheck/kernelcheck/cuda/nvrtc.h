// What nvcc takes from headers of the host and NVRTC does not have. It stands before a text that NVRTC compiles.
#undef __CUDA_NO_HALF_OPERATORS__  // which PyTorch defines
#undef __CUDA_NO_HALF_CONVERSIONS__
#undef __CUDA_NO_HALF2_OPERATORS__
#undef __CUDA_NO_BFLOAT16_CONVERSIONS__
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned uint32_t; typedef unsigned long long uint64_t;
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned uint;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.1920929e-7f
#define DBL_MAX 1.7976931348623157e308
#define M_PI 3.14159265358979323846
#define M_SQRT2 1.41421356237309504880
namespace std {
template <class T> __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> __device__ constexpr void swap(T& a, T& b) { T c = a; a = b; b = c; }
using ::abs; using ::fabs; using ::sqrt; using ::exp; using ::log; using ::pow; using ::sin; using ::cos; using ::tanh;
using ::floor; using ::ceil; using ::round; using ::isnan; using ::isinf;
typedef decltype(sizeof 0) size_t;
template <class T> struct numeric_limits;
#define KC_LIMITS(T, least, lowest_, most, infinite) \
  template <> struct numeric_limits<T> { \
    __device__ static constexpr T min() { return least; } __device__ static constexpr T max() { return most; } \
    __device__ static constexpr T lowest() { return lowest_; } __device__ static T infinity() { return infinite; } };
KC_LIMITS(float, 1.175494351e-38f, -3.402823466e+38f, 3.402823466e+38f, __int_as_float(0x7f800000))
KC_LIMITS(double, 2.2250738585072014e-308, -1.7976931348623157e308, 1.7976931348623157e308, __longlong_as_double(0x7ff0000000000000ll))
KC_LIMITS(int, -2147483647 - 1, -2147483647 - 1, 2147483647, 0)
KC_LIMITS(unsigned, 0u, 0u, 4294967295u, 0u)
}
#line 1
