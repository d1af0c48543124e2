#include "core/tensor/format.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr int kF32MantissaBits = 23;
constexpr uint32_t kF32Infinity = 0x7f800000u;

constexpr FormatInfo kFormatInfos[] = {
    {"fp32", 8, 23, 127, 0x1.fffffep127, 0x1p-126, 0x1p-149, 0x1p-23, true, 16777214},
    {"tf32", 8, 10, 127, 0x1.ffcp127, 0x1p-126, 0x1p-136, 0x1p-10, true, 2046},
    {"bf16", 8, 7, 127, 0x1.fep127, 0x1p-126, 0x1p-133, 0x1p-7, true, 254},
    {"fp16", 5, 10, 15, 65504.0, 0x1p-14, 0x1p-24, 0x1p-10, true, 2046},
    {"e4m3", 4, 3, 7, 448.0, 0x1p-6, 0x1p-9, 0x1p-3, false, 2},
    {"e5m2", 5, 2, 15, 57344.0, 0x1p-14, 0x1p-16, 0x1p-2, true, 6},
    {"e2m1", 2, 1, 1, 6.0, 1.0, 0.5, 0.5, false, 0},
};

uint32_t sign_bit(const FormatInfo& f) { return 1u << (f.exponent_bits + f.mantissa_bits); }

// The code of the largest finite value. The next code is Inf, NaN (e4m3), or no code of the format (e2m1).
uint32_t max_code(const FormatInfo& f) {
  if (f.has_infinity) return (((1u << f.exponent_bits) - 1) << f.mantissa_bits) - 1;
  return sign_bit(f) - 1 - f.nan_count / 2;
}

// The code of a NaN, without its sign.
uint32_t encode_nan(const FormatInfo& f, uint32_t magnitude) {
  if (!f.has_infinity) return sign_bit(f) - 1;  // e4m3: one NaN for each sign; e2m1: the maximum
  const uint32_t quiet_bit = 1u << (f.mantissa_bits - 1);
  const uint32_t payload = (magnitude - kF32Infinity) >> (kF32MantissaBits - f.mantissa_bits);
  return (max_code(f) + 1) | quiet_bit | payload;
}

// The code of a finite value's magnitude rounded to nearest even, as if the exponent had no upper limit.
uint32_t round_magnitude(const FormatInfo& f, uint32_t magnitude) {
  const int field = static_cast<int>(magnitude >> kF32MantissaBits);
  const uint32_t fraction = magnitude & 0x7fffffu;
  // magnitude = significand * 2^(exponent - 23)
  const uint32_t significand = field == 0 ? fraction : fraction | 0x800000u;
  const int exponent = std::max(field, 1) - 127;
  const int min_exponent = 1 - f.bias;
  const int target_exponent = std::max(exponent, min_exponent);  // below min_exponent the last bit stays where it is
  const int shift = kF32MantissaBits - f.mantissa_bits + target_exponent - exponent;
  uint32_t rounded = significand;
  if (shift > kF32MantissaBits + 1) {
    rounded = 0;  // less than half of the smallest subnormal
  } else if (shift > 0) {
    const uint32_t last_bit = (significand >> shift) & 1u;
    rounded = (significand + (1u << (shift - 1)) - 1 + last_bit) >> shift;
  }
  // A normal number's leading bit adds 1 to the exponent field; a carry out of the mantissa does it once more.
  return (static_cast<uint32_t>(target_exponent - min_exponent) << f.mantissa_bits) + rounded;
}

}  // namespace

const FormatInfo& info(Format format) { return kFormatInfos[static_cast<size_t>(format)]; }

uint32_t encode(Format format, float value, Saturation saturation) {
  const FormatInfo& f = info(format);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 31) != 0 ? sign_bit(f) : 0u;
  if (magnitude > kF32Infinity) return (f.nan_count == 0 ? 0u : sign) | encode_nan(f, magnitude);
  const bool saturates = saturation == Saturation::kYes || f.nan_count == 0;
  const uint32_t limit = max_code(f) + (saturates ? 0 : 1);
  return sign | (magnitude == kF32Infinity ? limit : std::min(round_magnitude(f, magnitude), limit));
}

float decode(Format format, uint32_t code) {
  const FormatInfo& f = info(format);
  const uint32_t sign_mask = sign_bit(f);
  MANTISSA_CHECK(code <= (sign_mask | (sign_mask - 1)), "[decode] {} has {}-bit codes, got {:#x}", f.name,
                 1 + f.exponent_bits + f.mantissa_bits, code);
  const uint32_t sign = (code & sign_mask) != 0 ? 0x80000000u : 0u;
  const uint32_t magnitude = code & (sign_mask - 1);
  const uint32_t fraction = magnitude & ((1u << f.mantissa_bits) - 1);
  const int field = static_cast<int>(magnitude >> f.mantissa_bits);
  if (magnitude > max_code(f)) {  // Inf or NaN
    return std::bit_cast<float>(sign | kF32Infinity | (fraction << (kF32MantissaBits - f.mantissa_bits)));
  }
  const uint32_t significand = field == 0 ? fraction : fraction | (1u << f.mantissa_bits);
  const float absolute = std::ldexp(static_cast<float>(significand), std::max(field, 1) - f.bias - f.mantissa_bits);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(absolute) | sign);
}

float quantize(Format format, float value, Saturation saturation) {
  return decode(format, encode(format, value, saturation));
}

}  // namespace mantissa
