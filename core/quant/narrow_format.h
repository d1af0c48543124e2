// Rounding to formats of at most 8 bits, as values: what quantisers do to each element. Arithmetic of fp32 that is
// exact but for the one rounding asked for, the same on every device. Codes are the business of core/tensor/format.h.
//
// What is not finite stays so: Inf becomes Inf where the format has one and NaN elsewhere, a NaN stays one. A
// conversion that saturates Inf too, as the hardware's do, would hide an overflow. e2m1 has neither, but a block of it
// has a scale that can be NaN, which is the same for who multiplies.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "core/tensor/format.h"

namespace mantissa {

inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// |value| as an integer that orders like it, a NaN above Inf: maxima of such integers are the same in any order, and a
// NaN is not lost among them.
constexpr uint32_t magnitude_bits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

constexpr bool is_finite_magnitude(uint32_t bits) { return bits < kInfinityBits; }

// What rounding needs to know of e4m3, e5m2 or e2m1.
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

// What becomes of an Inf or a NaN.
constexpr float narrow_non_finite(const NarrowFormat& format, float value) {
  if (format.has_infinity && magnitude_bits(value) == kInfinityBits) return value;
  return std::numeric_limits<float>::quiet_NaN();
}

// The distance between the format's neighbours around a magnitude within its range: a power of two.
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
  // The last place of a sum with 2^23 distances is one distance: the addition rounds, the subtraction is exact.
  const float aligner = neighbour_distance(format, magnitude) * 0x1p23f;
  return with_sign_of((magnitude + aligner) - aligner, value);
}

// One of the two neighbours, hi with probability (|value| - lo) / (hi - lo): exact from 2^-31 distances on, and rounded
// down below. What the format has stays as it is; beyond the maximum as round_to(). word: 32 random bits.
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
