// The outcome of rounding one value to a format of at most 8 bits.
#pragma once

#include "core/quant/narrow_format.h"

namespace mantissa {

// The categories of FormatLosses.
enum class RoundingOutcome : uint8_t { kZero, kUnderflowed, kSubnormal, kNormal, kOverflowed, kNonFinite };
inline constexpr int kRoundingOutcomes = 6;

// Whether a magnitude would round to more than the format's maximum if the format had more exponents; ties to even.
constexpr bool rounds_beyond(const NarrowFormat& format, float magnitude) {
  if (magnitude <= format.max) return false;
  const float distance = neighbour_distance(format, format.max);
  if (magnitude >= format.max + distance) return true;
  const float aligner = distance * 0x1p23f;
  return (magnitude + aligner) - aligner > format.max;
}

// The outcome for a value that is multiplied by `multiplier` and then rounded to nearest, ties to even. In a block that
// holds a value that is not finite, the multiplier is NaN, and values other than 0 overflow: kOverflowed.
constexpr RoundingOutcome rounding_outcome(const NarrowFormat& format, float value, float multiplier) {
  const uint32_t bits = magnitude_bits(value);
  if (bits == 0) return RoundingOutcome::kZero;
  if (!is_finite_magnitude(bits)) return RoundingOutcome::kNonFinite;
  const float magnitude = std::bit_cast<float>(bits) * multiplier;
  if (!is_finite_magnitude(magnitude_bits(magnitude)) || rounds_beyond(format, magnitude)) {
    return RoundingOutcome::kOverflowed;
  }
  const float rounded = round_to(format, magnitude);
  if (rounded == 0.0f) return RoundingOutcome::kUnderflowed;
  return rounded < format.min_normal ? RoundingOutcome::kSubnormal : RoundingOutcome::kNormal;
}

}  // namespace mantissa
