// Rounds values to formats of at most 8 bits, as quantizers do to each element. The fp32 arithmetic is exact except for
// the requested rounding, and the same on every device. core/tensor/format.h defines the formats.
//
// Values that are not finite stay so: Inf becomes Inf if the format has one, else NaN; NaN stays NaN. A conversion that
// saturates Inf, like the hardware's, would hide an overflow. e2m1 has neither, but NaN scales of blocks act alike.
#pragma once

#include <bit>
#include <limits>

#include "core/tensor/format.h"

namespace mantissa {

inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// |value| as an integer of the same order, with NaN above Inf. Maxima are the same in any order and keep NaN.
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
  switch (format) {  // with `if`, ptxas spills registers of a kernel
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

// --- the outcome of rounding one value

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

// The outcome for a value that is multiplied by `multiplier` and then rounded to nearest, ties to even. In a block with
// a non-finite value, the multiplier is NaN, and finite values other than 0 overflow: kOverflowed.
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

// --- 8-bit codes of e4m3 and e5m2 (bits as in core/tensor/format.h)

// `value` is a number of the format, as round_to() gives it, NaN (the largest code), or Inf if the format has Inf.
constexpr uint8_t code_of(const NarrowFormat& format, float value) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 24 & 0x80u;
  const uint32_t bits = magnitude_bits(value);
  const uint32_t is_infinity = format.has_infinity ? 0x7cu : 0x7fu;
  if (!is_finite_magnitude(bits)) return static_cast<uint8_t>(sign | (bits == kInfinityBits ? is_infinity : 0x7fu));
  // Subnormal numbers and the smallest normal one have the same distance to their neighbours, so their sum is exact and
  // has the code in its leading places.
  const float magnitude = std::bit_cast<float>(bits);
  const bool normal = !(magnitude < format.min_normal);
  const uint32_t first = std::bit_cast<uint32_t>(format.min_normal);
  const uint32_t lifted = std::bit_cast<uint32_t>(normal ? magnitude : magnitude + format.min_normal);
  const uint32_t places = (lifted - first) >> (23 - format.mantissa_bits);
  return static_cast<uint8_t>(sign | (places + (normal ? 1u << format.mantissa_bits : 0u)));
}

// Exact.
constexpr float value_of(const NarrowFormat& format, uint8_t code) {
  const uint32_t magnitude = code & 0x7fu, leading = 1u << format.mantissa_bits;
  const float sign = (code & 0x80u) != 0 ? -1.0f : 1.0f;
  if (format.has_infinity && magnitude == 0x7cu) return sign * std::numeric_limits<float>::infinity();
  if (magnitude > (format.has_infinity ? 0x7cu : 0x7eu)) return std::numeric_limits<float>::quiet_NaN();
  const float smallest = format.min_normal * power_of_two(-format.mantissa_bits);
  if (magnitude < leading) return sign * (static_cast<float>(magnitude) * smallest);
  const uint32_t first = std::bit_cast<uint32_t>(format.min_normal);
  return sign * std::bit_cast<float>(first + ((magnitude - leading) << (23 - format.mantissa_bits)));
}

// The value that a code of a tensor with this scale stands for. It is stored in place of the value that was rounded;
// the caller rounds it to nearest once more when storing. Rounding the stored value with the same scale gives the code
// again, in bf16 and fp32 and for scales within 2^+-kCodeScaleExponent: see tests/core/quant/narrow_format_test.cc.
constexpr float unscaled_value_of(const NarrowFormat& format, uint8_t code, float scale) {
  return value_of(format, code) / scale;
}

// For scales within 2^+-110, the quotients of all numbers of both formats are normal in bf16.
inline constexpr int kCodeScaleExponent = 110;

// --- the random Hadamard transform
// It spreads an outlier over 16 values before they are rounded. Applied to both operands along the dimension that a
// product sums over, it changes the product only by rounding. Source: NVIDIA's NVFP4 recipe, which transforms the
// operands of weight gradients, with the same signs for all.

inline constexpr int64_t kHadamardLength = 16;

// Bit j is set if value j changes its sign before the transform: (j0 and j1) xor (j2 and j3), with j0 ... j3 the bits
// of j. A bent function correlates by +-4 with every row of the matrix: equal values are spread evenly, too.
inline constexpr uint32_t kHadamardSigns = 0x7888u;

constexpr bool hadamard_negates(int64_t value) { return (kHadamardSigns >> value & 1u) != 0; }

}  // namespace mantissa
