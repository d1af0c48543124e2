// Reference for conversions to narrow floating formats, by definition and search only. It shares no bit manipulation
// with the code under test.
//
// A format with e exponent bits, m mantissa bits and bias b has, for field E and mantissa M, the values
//   2^(1-b) * (M / 2^m)         for E = 0
//   2^(E-b) * (1 + M / 2^m)     for E > 0,
// computed in double by ldexp. The code of a value is its position in this ascending list.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/tensor/half.h"

namespace mantissa::testing {

// The meaning of codes with the largest exponent.
enum class TopExponent : uint8_t {
  kInfinityAndNans,   // as IEEE 754
  kNumbersAndOneNan,  // the last mantissa is NaN (e4m3)
  kNumbers,           // (e2m1)
};

struct FormatDefinition {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  TopExponent top = TopExponent::kInfinityAndNans;
};

class FormatReference {
 public:
  explicit FormatReference(FormatDefinition definition) : definition_(definition) {
    const int mantissas = 1 << definition.mantissa_bits;
    const int last_field = (1 << definition.exponent_bits) - 1;
    const int fields = definition.top == TopExponent::kInfinityAndNans ? last_field : last_field + 1;
    for (int field = 0; field < fields; ++field) {
      for (int mantissa = 0; mantissa < mantissas; ++mantissa) {
        const bool is_last = field == last_field && mantissa == mantissas - 1;
        if (is_last && definition.top == TopExponent::kNumbersAndOneNan) break;
        const double fraction = static_cast<double>(mantissa) / mantissas;
        values_.push_back(field == 0 ? std::ldexp(fraction, 1 - definition.bias)
                                     : std::ldexp(1.0 + fraction, field - definition.bias));
      }
    }
    finite_count_ = static_cast<uint32_t>(values_.size());
    // The next number after the maximum: a value that rounds to it is out of range.
    values_.push_back(values_.back() + (values_.back() - values_[values_.size() - 2]));
  }

  uint32_t sign_bit() const { return 1u << (definition_.exponent_bits + definition_.mantissa_bits); }
  uint32_t code_count() const { return 2 * sign_bit(); }
  uint32_t finite_count() const { return finite_count_; }  // codes 0 .. finite_count - 1 are the values >= 0
  double value(uint32_t code) const { return values_[code]; }
  double max() const { return values_[finite_count_ - 1]; }
  // Half-way between the values of code and code + 1. For the last code, half-way to the number that would follow.
  double midpoint(uint32_t code) const { return (values_[code] + values_[code + 1]) / 2; }

  // Nearest value, ties to the even code. finite_count() means "out of range". `value` must not be NaN.
  uint32_t nearest(double value) const {
    const double magnitude = std::fabs(value);
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    if (above == values_.end()) return finite_count_;
    const auto high = static_cast<uint32_t>(above - values_.begin());
    if (high == 0 || *above == magnitude) return high;
    const double to_high = *above - magnitude;
    const double to_low = magnitude - values_[high - 1];
    if (to_high != to_low) return to_high < to_low ? high : high - 1;
    return high % 2 == 0 ? high : high - 1;
  }

 private:
  FormatDefinition definition_;
  std::vector<double> values_;
  uint32_t finite_count_ = 0;
};

// Calls check(float) for every value >= 0 of the format, every midpoint between neighbours, the fp32 neighbours of
// each, their negatives, and the extremes of fp32. All are exact in fp32 for formats of at most 22 mantissa bits.
template <typename Check>
void for_each_boundary(const FormatReference& reference, Check&& check) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto both_signs = [&](float value) {
    check(value);
    check(-value);
  };
  const auto around = [&](double exact) {
    const auto value = static_cast<float>(exact);
    both_signs(value);
    both_signs(std::nextafterf(value, infinity));
    if (value > 0) both_signs(std::nextafterf(value, 0.0f));
  };
  for (uint32_t code = 0; code < reference.finite_count(); ++code) {
    around(reference.value(code));
    if (reference.midpoint(code) <= std::numeric_limits<float>::max()) around(reference.midpoint(code));
  }
  both_signs(std::numeric_limits<float>::max());
  both_signs(std::numeric_limits<float>::denorm_min());
  both_signs(infinity);
}

// The definition of a 16-bit storage type.
template <typename T>
FormatDefinition definition_of();
template <>
inline FormatDefinition definition_of<BFloat16>() {
  return {8, 7, 127};
}
template <>
inline FormatDefinition definition_of<Float16>() {
  return {5, 10, 15};
}

}  // namespace mantissa::testing
