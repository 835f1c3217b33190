#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {
#define KC_OPERATION(name, result) template <class T> struct name { KC_INSIDE T operator()(T a, T b) const { return result; } };
KC_OPERATION(plus, T(a + b)) KC_OPERATION(less, b < a ? b : a) KC_OPERATION(greater, a < b ? b : a)
KC_OPERATION(bit_and, T(a & b)) KC_OPERATION(bit_or, T(a | b)) KC_OPERATION(bit_xor, T(a ^ b))
}  // namespace cooperative_groups
