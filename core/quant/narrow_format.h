// Rounds values to formats of at most 8 bits, as quantizers do to each element. The fp32 arithmetic is exact except for
// the requested rounding, and the same on every device. core/tensor/format.h handles codes.
//
// Values that are not finite stay so: Inf becomes Inf if the format has one, else NaN; NaN stays NaN. A conversion that
// saturates Inf, as that of the hardware does, would hide an overflow. e2m1 has neither Inf nor NaN, but the scale of
// its block can be NaN, which has the same effect on a product.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "core/tensor/format.h"

namespace mantissa {

inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// |value| as an integer of the same order, with NaN above Inf. Maxima of such integers are the same in any order and do
// not lose a NaN.
constexpr uint32_t magnitude_bits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

constexpr bool is_finite_magnitude(uint32_t bits) { return bits < kInfinityBits; }

// The properties of e4m3, e5m2 or e2m1 that rounding needs.
struct NarrowFormat {
  float max;
  float min_normal;
  int mantissa_bits;
  bool has_infinity;
};

constexpr NarrowFormat narrow_format(Format format) {
  switch (format) {
    case Format::kE4M3:
      return {448.0f, 0x1p-6f, 3, false};
    case Format::kE5M2:
      return {57344.0f, 0x1p-14f, 2, true};
    case Format::kE2M1:
      return {6.0f, 1.0f, 1, false};
    default:
      return {};
  }
}

// 2^exponent for -126 <= exponent <= 127.
constexpr float power_of_two(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }

// The result of rounding an Inf or a NaN.
constexpr float narrow_non_finite(const NarrowFormat& format, float value) {
  if (format.has_infinity && magnitude_bits(value) == kInfinityBits) return value;
  return std::numeric_limits<float>::quiet_NaN();
}

// The distance between neighbours of the format around a magnitude within its range: a power of two.
constexpr float neighbour_distance(const NarrowFormat& format, float magnitude) {
  const float at_least = magnitude < format.min_normal ? format.min_normal : magnitude;
  const float binade = std::bit_cast<float>(std::bit_cast<uint32_t>(at_least) & kInfinityBits);
  return binade * power_of_two(-format.mantissa_bits);
}

constexpr float with_sign_of(float magnitude, float value) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (std::bit_cast<uint32_t>(value) & 0x80000000u));
}

// The nearest value of the format, ties to even; finite values beyond the maximum become the maximum.
constexpr float round_to(const NarrowFormat& format, float value) {
  if (!is_finite_magnitude(magnitude_bits(value))) return narrow_non_finite(format, value);
  const float full = std::bit_cast<float>(magnitude_bits(value));
  const float magnitude = full < format.max ? full : format.max;
  // A sum with 2^23 distances has one distance as its last place: the addition rounds, the subtraction is exact.
  const float aligner = neighbour_distance(format, magnitude) * 0x1p23f;
  return with_sign_of((magnitude + aligner) - aligner, value);
}

// Rounds to one of the two neighbours, lo and hi in magnitude: to hi with probability (|value| - lo) / (hi - lo). The
// probability is exact from 2^-8 distances on; below, it is rounded down to a multiple of 2^-31. Numbers of the format
// stay as they are; values beyond the maximum become what round_to() gives. word: 32 random bits.
constexpr float round_stochastically_to(const NarrowFormat& format, float value, uint32_t word) {
  if (!is_finite_magnitude(magnitude_bits(value))) return narrow_non_finite(format, value);
  const float full = std::bit_cast<float>(magnitude_bits(value));
  const float magnitude = full < format.max ? full : format.max;
  const float distance = neighbour_distance(format, magnitude);
  const float places = magnitude / distance;  // below 2^(mantissa_bits + 1); exact: a division by a power of two
  const auto whole = static_cast<int32_t>(places);
  const float fraction = places - static_cast<float>(whole);
  const bool up = static_cast<int32_t>(word >> 1) < static_cast<int32_t>(fraction * 0x1p31f);
  return with_sign_of(static_cast<float>(whole + (up ? 1 : 0)) * distance, value);
}

}  // namespace mantissa
