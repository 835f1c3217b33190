// What all threads of a tile make of their values together: the same result for each.
#pragma once
#include "functional.h"

namespace cooperative_groups {
template <class Group, class T, class F> KC_INSIDE T reduce(const Group& group, T v, F f, KC_LINE) {
  T r = group.kc_give(v, 0, line);
  for (unsigned i = 1; i < group.size(); i++) r = f(r, group.kc_give(v, i, line));
  return r;
}
}  // namespace cooperative_groups
