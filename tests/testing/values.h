// Numbers for tests: reproducible random values and the norm-wise error between two lists of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/base/check.h"
#include "core/tensor/philox.h"

namespace mantissa::testing {

// Normal values, the same in every run.
inline std::vector<float> normal_values(int64_t count, uint64_t seed, float stddev = 1.0f) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const PhiloxCounter words = philox(seed, {static_cast<uint32_t>(i), 0, 0, 0x7e57u});
    values[i] = stddev * normal_pair(words[0], words[1])[0];
  }
  return values;
}

// Integers in [0, bound), the same in every run.
inline std::vector<int32_t> random_tokens(int64_t count, uint32_t bound, uint64_t seed) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(philox(seed, {static_cast<uint32_t>(i), 0, 0, 0x70cu})[0] % bound);
  }
  return values;
}

inline double norm(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// |value - reference| / |reference| in the Euclidean norm. NaN if anything is NaN, so that a comparison with < fails.
inline double relative_error(const std::vector<float>& value, const std::vector<float>& reference) {
  MANTISSA_CHECK(value.size() == reference.size(), "[relative_error] {} values against {}", value.size(),
                 reference.size());
  double difference = 0.0, magnitude = 0.0;
  for (size_t i = 0; i < value.size(); ++i) {
    const double d = static_cast<double>(value[i]) - reference[i];
    difference += d * d;
    magnitude += static_cast<double>(reference[i]) * reference[i];
  }
  if (magnitude == 0.0) return difference == 0.0 ? 0.0 : INFINITY;
  return std::sqrt(difference / magnitude);
}

}  // namespace mantissa::testing
