// An exact sum of doubles, in which order and grouping of the addends change no bit. Runs on the device (constexpr:
// nvcc compiles it for both sides).
//
//   sum = 2^kLowest (digit 0 + digit 1 * 2^32 + ... + digit 19 * 2^(32 * 19))
//
// After Kulisch's long accumulator, with deferred carries (Collange, Defour, Graillat, Iakymchuk 2015, "Numerical
// reproducibility for the parallel reduction on multi- and many-core architectures"): an addend changes at most three
// digits, each by less than 2^32. Digits are 64-bit integers; their carries wait until value(). So sums are added digit
// by digit, as integers, and a sum can hold 2^30 addends, the addends of its parts included.
//
// Range: multiples of 2^-320 below 2^320. Squares of fp32 numbers are multiples of 2^-298 below 2^256: their sums fit,
// and so do losses in fp32. Smaller bits of an addend are rounded to the grid, ties to even, before the addition.
// Larger addends count as infinite.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace mantissa {

struct ExactSum {
  static constexpr int kLowest = -320, kDigits = 20, kDigitBits = 32;
  // Beside the digits: the numbers of NaN, of +Inf and of -Inf among the addends.
  static constexpr int kNan = kDigits, kPositive = kDigits + 1, kNegative = kDigits + 2, kWords = kDigits + 3;

  int64_t words[kWords] = {};

  bool operator==(const ExactSum&) const = default;

  // Calls put(word, amount) for each word that adding x changes.
  template <typename Put>
  static constexpr void split(double x, Put put) {
    constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1;
    const auto bits = std::bit_cast<uint64_t>(x);
    const bool is_negative = bits >> 63 != 0;
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    if (exponent - 1023 >= -kLowest) {
      const bool is_nan = exponent == 0x7ff && (bits & kFraction) != 0;
      return put(is_nan ? kNan : is_negative ? kNegative : kPositive, int64_t{1});
    }
    if (exponent == 0) return;  // subnormal: below half of the grid
    uint64_t significand = (bits & kFraction) | (kFraction + 1);
    int shift = exponent - 1023 - 52 - kLowest;  // of the significand, from the grid
    if (shift < 0) {
      significand = round_shift(significand, -shift);
      shift = 0;
    }
    const int offset = shift % kDigitBits;
    const uint64_t changes[] = {significand << offset & kMask, significand >> (kDigitBits - offset) & kMask,
                                offset == 0 ? 0 : significand >> (2 * kDigitBits - offset)};
    for (int k = 0; k < 3; ++k) {
      const auto digit = static_cast<int64_t>(changes[k]);
      if (digit != 0) put(shift / kDigitBits + k, is_negative ? -digit : digit);
    }
  }

  constexpr void add(double x) {
    split(x, [this](int word, int64_t amount) { words[word] += amount; });
  }

  constexpr ExactSum& operator+=(const ExactSum& other) {
    for (int word = 0; word < kWords; ++word) words[word] += other.words[word];
    return *this;
  }

  constexpr bool is_finite() const { return words[kNan] == 0 && words[kPositive] == 0 && words[kNegative] == 0; }

  // The sum, rounded once, to the nearest double, ties to even. A sum of 0 is +0.
  constexpr double value() const {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    if (words[kNan] != 0 || (words[kPositive] != 0 && words[kNegative] != 0)) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    if (words[kPositive] != 0) return kInf;
    if (words[kNegative] != 0) return -kInf;
    uint32_t digits[kDigits + 1] = {};
    return carry(1, digits) >= 0 ? magnitude(digits) : (carry(-1, digits), -magnitude(digits));
  }

 private:
  static constexpr uint64_t kMask = (uint64_t{1} << kDigitBits) - 1;

  // x / 2^by, rounded to nearest, ties to even.
  static constexpr uint64_t round_shift(uint64_t x, int by) {
    if (by > 53) return 0;  // below a half
    const uint64_t half = uint64_t{1} << (by - 1), rest = x & (2 * half - 1), quotient = x >> by;
    return quotient + (rest > half || (rest == half && (quotient & 1) != 0) ? 1 : 0);
  }

  // Makes the digits of sign * sum, from 0 to 2^32 - 1. Returns the rest above digit 19, which has the sign.
  constexpr int64_t carry(int64_t sign, uint32_t (&digits)[kDigits + 1]) const {
    int64_t carried = 0;
    for (int digit = 0; digit < kDigits; ++digit) {
      carried += sign * words[digit];
      digits[digit] = static_cast<uint32_t>(carried);
      carried >>= kDigitBits;
    }
    digits[kDigits] = static_cast<uint32_t>(carried);
    return carried;
  }

  static constexpr double magnitude(const uint32_t (&digits)[kDigits + 1]) {
    int top = kDigits;
    while (top > 0 && digits[top] == 0) --top;
    const auto digit = [&](int index) { return index < 0 ? uint64_t{0} : uint64_t{digits[index]}; };
    uint64_t upper = digit(top) << kDigitBits | digit(top - 1), lower = digit(top - 2) << kDigitBits;
    if (upper == 0) return 0.0;
    bool is_rest = false;
    for (int index = 0; index < top - 2; ++index) is_rest = is_rest || digits[index] != 0;
    int exponent = kLowest + kDigitBits * (top - 1);  // of the last bit of `upper`
    for (; upper >> 63 == 0; --exponent) {
      upper = upper << 1 | lower >> 63;
      lower <<= 1;
    }
    if (lower != 0 || is_rest) upper |= 1;  // below the bits that decide, but for a tie
    return static_cast<double>(round_shift(upper, 11)) * power_of_two(exponent + 11);
  }

  static constexpr double power_of_two(int exponent) {
    return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
  }
};

}  // namespace mantissa
