// Frequencies of rotary position embedding, and the rules by which models stretch them for longer contexts.
#pragma once

#include <cstdint>

namespace mantissa {

// kLinear divides all frequencies by `factor`. kLlama3 divides frequencies with a wavelength above original_context /
// low_frequency_factor, keeps those below original_context / high_frequency_factor, and interpolates in between.
enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3 };

struct RopeFrequencies {
  float base = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f, low_frequency_factor = 1.0f, high_frequency_factor = 4.0f;  // the last two: kLlama3 only
  int64_t original_context = 8192;                                                 // kLlama3 only

  // Radians per position of pair `pair` of a head. Unscaled, base^(-2 pair / head_dim).
  double of_pair(int64_t pair, int64_t head_dim) const;

  bool operator==(const RopeFrequencies&) const = default;
};

}  // namespace mantissa
