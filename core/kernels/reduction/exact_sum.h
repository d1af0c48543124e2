// ExactSum: the exact sum of doubles, on any device (constexpr: nvcc compiles it for both sides). It depends neither on
// the order of the addends nor on how they were grouped, so every number of ranks gives the same bits: a fixed-point
// number as in Kulisch's accumulator, with carries that are resolved at the end.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace mantissa {

class ExactSum {
 public:
  // Digit k counts multiples of 2^(32 k + kLowestExponent). Addends are less than 2^kHighestExponent; others count as
  // infinite. Squares of fp32 numbers lie between 2^-298 and 2^256.
  static constexpr int kDigits = 21, kLowestExponent = -320, kHighestExponent = 320;
  // Then the numbers of addends that are NaN, +Inf and -Inf.
  static constexpr int kNaN = kDigits, kInf = kDigits + 1, kNegativeInf = kDigits + 2, kLimbs = kDigits + 3;

  // Calls add(limb, value) for what x adds to the limbs. Parts of x below the last digit are rounded to nearest, ties
  // to even, each addend by itself. A digit has room for 2^30 addends.
  template <typename Add>
  static constexpr void split(double x, const Add& add) {
    const auto bits = std::bit_cast<uint64_t>(x);
    const bool is_negative = bits >> 63 != 0;
    const auto exponent = static_cast<int>(bits >> 52 & 0x7ff);
    uint64_t significand = bits & ((uint64_t{1} << 52) - 1);
    if (exponent == 0x7ff && significand != 0) return add(kNaN, int64_t{1});
    if (exponent - 1023 >= kHighestExponent) return add(is_negative ? kNegativeInf : kInf, int64_t{1});
    if (exponent > 0) significand |= uint64_t{1} << 52;
    int place = (exponent > 0 ? exponent : 1) - 1075 - kLowestExponent;  // of the lowest bit, from that of digit 0 on
    if (place < 0) {
      significand = place < -54 ? 0 : rounded_shift(significand, -place);
      place = 0;
    }
    const int digit = place / 32, shift = place % 32;
    const uint64_t low = (significand & kDigitMask) << shift, high = (significand >> 32) << shift;
    const int64_t sign = is_negative ? -1 : 1;
    add(digit, sign * static_cast<int64_t>(low & kDigitMask));
    add(digit + 1, sign * static_cast<int64_t>((low >> 32) + (high & kDigitMask)));
    add(digit + 2, sign * static_cast<int64_t>(high >> 32));
  }

  constexpr void add(double x) {
    split(x, [this](int limb, int64_t value) { limbs[limb] += value; });
  }
  constexpr ExactSum& operator+=(const ExactSum& other) {
    for (int limb = 0; limb < kLimbs; ++limb) limbs[limb] += other.limbs[limb];
    return *this;
  }

  // The sum, rounded once to nearest, ties to even. NaN or Inf as in IEEE arithmetic if there are such addends.
  constexpr double value() const {
    if (limbs[kNaN] != 0 || (limbs[kInf] != 0 && limbs[kNegativeInf] != 0)) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    if (limbs[kInf] != 0) return std::numeric_limits<double>::infinity();
    if (limbs[kNegativeInf] != 0) return -std::numeric_limits<double>::infinity();
    uint32_t digits[kDigits + 2] = {};
    const bool is_negative = carried(digits, 1) < 0;
    if (is_negative) carried(digits, -1);
    const double magnitude = rounded(digits);
    return is_negative ? -magnitude : magnitude;
  }

  bool operator==(const ExactSum&) const = default;

  int64_t limbs[kLimbs] = {};  // public: threads add to different limbs

 private:
  static constexpr uint64_t kDigitMask = 0xffffffffu;

  // x / 2^shift for 1 <= shift <= 54, rounded to nearest, ties to even.
  static constexpr uint64_t rounded_shift(uint64_t x, int shift) {
    const uint64_t whole = x >> shift, rest = x & ((uint64_t{1} << shift) - 1), half = uint64_t{1} << (shift - 1);
    return whole + (rest > half || (rest == half && (whole & 1) != 0) ? 1 : 0);
  }

  // Writes the digits of sign * sum; returns the carry out of the last digit: negative if sign * sum is.
  constexpr int64_t carried(uint32_t (&digits)[kDigits + 2], int sign) const {
    int64_t carry = 0;
    for (int digit = 0; digit < kDigits + 2; ++digit) {
      carry += digit < kDigits ? sign * limbs[digit] : 0;
      digits[digit] = static_cast<uint32_t>(static_cast<uint64_t>(carry) & kDigitMask);
      carry >>= 32;  // rounds down
    }
    return carry;
  }

  static constexpr double rounded(const uint32_t (&digits)[kDigits + 2]) {
    int top = kDigits + 1;
    while (top >= 0 && digits[top] == 0) --top;
    if (top < 0) return 0.0;
    int width = 0;  // bits of the highest digit
    while (width < 32 && digits[top] >> width != 0) ++width;
    const uint64_t next = top > 0 ? digits[top - 1] : 0, after = top > 1 ? digits[top - 2] : 0;
    uint64_t head = (uint64_t{digits[top]} << 32 | next) << (32 - width) | after >> width;  // its highest bit is set
    uint64_t sticky = after & ((uint64_t{1} << width) - 1);
    for (int digit = top - 3; digit >= 0; --digit) sticky |= digits[digit];
    if (sticky != 0) head |= 1;  // far below the last bit that stays
    uint64_t significand = rounded_shift(head, 11);
    int exponent = 32 * top + width - 1 + kLowestExponent;
    if (significand >> 53 != 0) {
      significand >>= 1;
      ++exponent;
    }
    if (exponent > 1023) return std::numeric_limits<double>::infinity();
    return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52 |
                                 (significand & ((uint64_t{1} << 52) - 1)));
  }
};

}  // namespace mantissa
