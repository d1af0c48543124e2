// Multiples of a unit.
#pragma once

#include <type_traits>

namespace mantissa {

// The least multiple of `unit` that is not below `value`. Requires value >= 0 and unit > 0; the result must fit.
template <typename Integer>
constexpr Integer round_up(Integer value, std::type_identity_t<Integer> unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace mantissa
