// Converts between values and 8-bit codes of e4m3 and e5m2, by exact arithmetic that is the same on every device.
// core/tensor/format.h defines the bits (OCP 8-bit Floating Point Specification 1.0).
#pragma once

#include "core/quant/narrow_format.h"

namespace mantissa {

// `value` is a number of the format, as round_to() gives it, Inf if the format has one, or NaN, which becomes the
// format's largest code.
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
// again, in bf16 and fp32 and for scales within 2^+-kCodeScaleExponent: see tests/core/quant/narrow_codes_test.cc.
constexpr float unscaled_value_of(const NarrowFormat& format, uint8_t code, float scale) {
  return value_of(format, code) / scale;
}

// For scales within 2^+-110, the quotients of all numbers of both formats are normal in bf16.
inline constexpr int kCodeScaleExponent = 110;

}  // namespace mantissa
