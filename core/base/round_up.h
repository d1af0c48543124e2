// Multiples of a unit.
#pragma once

#include <type_traits>

namespace mantissa {

// The least multiple of `unit` that is not below `value`: value at least 0, unit above 0, and the result fits.
template <typename Integer>
constexpr Integer round_up(Integer value, std::type_identity_t<Integer> unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace mantissa
