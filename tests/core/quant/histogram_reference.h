// Exponent histograms of lists of numbers, one element at a time.
#pragma once

#include <vector>

#include "core/quant/exponent_histogram.h"

namespace mantissa::testing {

inline ExponentHistogram histogram_of(const std::vector<float>& values) {
  ExponentHistogram histogram;
  for (const float value : values) {
    const uint32_t magnitude = magnitude_bits(value);
    ++histogram.counts[histogram_bin(magnitude)];
    if (is_finite_magnitude(magnitude)) histogram.amax = std::max(histogram.amax, magnitude);
  }
  return histogram;
}

}  // namespace mantissa::testing
