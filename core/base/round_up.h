// Integer division that rounds up.
#pragma once

#include <type_traits>

namespace mantissa {

// The least multiple of `unit` that is not below `value`. Requires value >= 0 and unit > 0; the result must fit.
template <typename Integer>
constexpr Integer round_up(Integer value, std::type_identity_t<Integer> unit) {
  return (value + unit - 1) / unit * unit;
}

// The least integer that is not below a / b. Requires a >= 0 and b > 0; a + b must fit.
template <typename Integer>
constexpr Integer divide_up(Integer a, std::type_identity_t<Integer> b) {
  return (a + b - 1) / b;
}

}  // namespace mantissa
