// What the threads of a tile up to one make of their values together, for each.
#pragma once
#include "functional.h"

namespace cooperative_groups {
template <class Group, class T, class F = plus<T>>
KC_INSIDE T kc_scan(const Group& group, T v, F f, bool itself, int line) {
  T r = T(); bool first = true;
  for (unsigned i = 0; i < group.size(); i++) {
    T given = group.kc_give(v, i, line);
    if (i < group.thread_rank() + itself) { r = first ? given : f(r, given); first = false; }
  }
  return r;
}
template <class Group, class T, class F = plus<T>> KC_INSIDE T inclusive_scan(const Group& group, T v, F f = {}, KC_LINE) {
  return kc_scan(group, v, f, true, line);
}
template <class Group, class T, class F = plus<T>> KC_INSIDE T exclusive_scan(const Group& group, T v, F f = {}, KC_LINE) {
  return kc_scan(group, v, f, false, line);
}
}  // namespace cooperative_groups
