// Amaxes of a long training, for tests of delayed scaling.
#pragma once

#include <cmath>
#include <limits>

#include "core/tensor/philox.h"

namespace mantissa::testing {

// Mostly values around 1 that drift over the steps, mixed with zeros, NaN and Inf. `words` are random.
inline float random_amax(const PhiloxCounter& words, uint32_t step) {
  switch (words[0] % 16) {
    case 0:
      return 0.0f;
    case 1:
      return std::numeric_limits<float>::infinity();
    case 2:
      return std::nanf("");
    case 3:
      return std::numeric_limits<float>::denorm_min();
    default:
      return std::exp2(8.0f * std::sin(static_cast<float>(step) / 50.0f) + 4.0f * uniform01(words[1]));
  }
}

}  // namespace mantissa::testing
