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
using ::abs; using ::acos; using ::acosh; using ::asin; using ::asinh; using ::atan; using ::atan2; using ::atanh;
using ::cbrt; using ::ceil; using ::copysign; using ::cos; using ::cosh; using ::erf; using ::erfc; using ::exp; using ::exp2;
using ::expm1; using ::fabs; using ::fdim; using ::floor; using ::fma; using ::fmax; using ::fmin; using ::fmod;
using ::frexp; using ::hypot; using ::ilogb; using ::isfinite; using ::isinf; using ::isnan; using ::ldexp; using ::lgamma;
using ::llrint; using ::llround; using ::log; using ::log10; using ::log1p; using ::log2; using ::logb; using ::lrint;
using ::lround; using ::modf; using ::nearbyint; using ::nextafter; using ::pow; using ::remainder; using ::rint;
using ::round; using ::scalbn; using ::signbit; using ::sin; using ::sinh; using ::sqrt; using ::tan; using ::tanh;
using ::tgamma; using ::trunc; using ::int8_t; using ::uint8_t; using ::int16_t; using ::uint16_t; using ::int32_t;
using ::uint32_t; using ::int64_t; using ::uint64_t;
typedef decltype(sizeof 0) size_t; typedef decltype((char*)0 - (char*)0) ptrdiff_t;
template <class T, T v> struct integral_constant { static constexpr T value = v; typedef T value_type; __device__ constexpr operator T() const { return v; } };
template <bool v> using bool_constant = integral_constant<bool, v>;
typedef bool_constant<true> true_type; typedef bool_constant<false> false_type;
template <bool, class T = void> struct enable_if {}; template <class T> struct enable_if<true, T> { typedef T type; };
template <bool, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
template <class A, class B> struct is_same : false_type {}; template <class A> struct is_same<A, A> : true_type {};
template <class T> struct remove_const { typedef T type; }; template <class T> struct remove_const<const T> { typedef T type; };
template <class T> struct kc_stable { typedef T type; }; template <class T> struct kc_stable<volatile T> { typedef T type; };
template <class T> struct remove_cv { typedef typename kc_stable<typename remove_const<T>::type>::type type; };
template <class T> struct kc_pointer : false_type {}; template <class T> struct kc_pointer<T*> : true_type {};
template <class T, class... U> struct kc_one_of : bool_constant<(is_same<typename remove_cv<T>::type, U>::value || ...)> {};
template <class T> struct is_pointer : kc_pointer<typename remove_cv<T>::type> {};
template <class T> struct is_floating_point : kc_one_of<T, float, double> {};
template <class T> struct is_integral : kc_one_of<T, bool, char, signed char, unsigned char, short, unsigned short, int, unsigned, long, unsigned long, long long, unsigned long long> {};
template <class T> struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <bool b, class T = void> using enable_if_t = typename enable_if<b, T>::type;
template <bool b, class A, class B> using conditional_t = typename conditional<b, A, B>::type;
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; }; template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> using decay_t = remove_cv_t<remove_reference_t<T>>;
template <class T> struct decay { typedef decay_t<T> type; };
template <class T> struct remove_pointer { typedef T type; }; template <class T> struct remove_pointer<T*> { typedef T type; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct is_unsigned : kc_one_of<T, bool, unsigned char, unsigned short, unsigned, unsigned long, unsigned long long> {};
template <class T> struct is_signed : bool_constant<is_arithmetic<T>::value && !is_unsigned<T>::value> {};
template <class T> inline constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <class T> inline constexpr bool is_signed_v = is_signed<T>::value;
template <class T> struct make_signed { typedef T type; }; template <class T> struct make_unsigned { typedef T type; };
#define KC_SIGNS(S, U) template <> struct make_signed<U> { typedef S type; }; template <> struct make_unsigned<S> { typedef U type; };
KC_SIGNS(signed char, unsigned char) KC_SIGNS(short, unsigned short) KC_SIGNS(int, unsigned) KC_SIGNS(long, unsigned long) KC_SIGNS(long long, unsigned long long)
template <class T> using make_signed_t = typename make_signed<T>::type;
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class...> using void_t = void;
template <class T> __device__ T&& declval();
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <class T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> inline constexpr bool is_pointer_v = is_pointer<T>::value;
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
