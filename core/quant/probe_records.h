// Records of what rounding does to values and updates. Plain data on the values' device; probes read them.
#pragma once

#include <cmath>
#include <iterator>

#include "core/quant/narrow_format.h"

namespace mantissa {

// --- how far values are from their references

// A plain record on the values' device. Sums over elements x and their references r, both finite, in double.
struct ErrorSums {
  int64_t elements = 0;
  int64_t non_finite = 0;  // x or r; not in the sums
  double reference_squares = 0.0;
  double squares = 0.0;        // x^2
  double products = 0.0;       // x r
  double error_squares = 0.0;  // (x - r)^2
  bool operator==(const ErrorSums&) const = default;

  constexpr void add(double value, double reference) {
    const double error = value - reference;
    ++elements;
    if (!(error <= std::numeric_limits<double>::max() && error >= std::numeric_limits<double>::lowest())) {
      ++non_finite;
      return;
    }
    reference_squares += reference * reference;
    squares += value * value;
    products += value * reference;
    error_squares += error * error;
  }

  constexpr ErrorSums& operator+=(const ErrorSums& other) {
    elements += other.elements;
    non_finite += other.non_finite;
    reference_squares += other.reference_squares;
    squares += other.squares;
    products += other.products;
    error_squares += other.error_squares;
    return *this;
  }
};

// 10 log10(sum r^2 / sum (x - r)^2). Inf if there is no error, NaN if an element was not finite or all r are 0.
inline double signal_to_noise_db(const ErrorSums& sums) {
  if (sums.non_finite > 0 || sums.reference_squares == 0.0) return std::numeric_limits<double>::quiet_NaN();
  return 10.0 * std::log10(sums.reference_squares / sums.error_squares);
}

// Cosine of the angle between x and r, as vectors. NaN if an element was not finite or one of the vectors is 0.
inline double cosine(const ErrorSums& sums) {
  if (sums.non_finite > 0) return std::numeric_limits<double>::quiet_NaN();
  return sums.products / std::sqrt(sums.squares) / std::sqrt(sums.reference_squares);
}

// --- updates that are too small for the format of the weights
// Rounded to nearest, w + dw is w again if |dw| is less than half of the distance between w and its neighbours,
// ulp(w) / 2.

// The formats that weights are stored in.
inline constexpr Format kStagnationFormats[] = {Format::kF32, Format::kBF16, Format::kF16};
inline constexpr int kStagnationFormatCount = static_cast<int>(std::size(kStagnationFormats));

// A plain record on the weights' device. Only counts: the same in every order of accumulation.
struct UpdateStagnation {
  int64_t elements = 0;
  int64_t zero = 0;                               // dw = 0
  int64_t non_finite = 0;                         // w or dw: neither zero nor stagnant
  int64_t stagnant[kStagnationFormatCount] = {};  // |dw| < ulp(w) / 2, dw = 0 included
  bool operator==(const UpdateStagnation&) const = default;
};

// The least normal number and the distance from 1 to the next number of a format, exact in fp32.
struct Spacing {
  float min_normal;
  float epsilon;
};

constexpr Spacing spacing_of(Format format) {
  if (format == Format::kF32) return {0x1p-126f, 0x1p-23f};
  if (format == Format::kBF16) return {0x1p-126f, 0x1p-7f};
  if (format == Format::kF16) return {0x1p-14f, 0x1p-10f};
  return {};
}

// ulp(w): the distance between numbers of the format in the binade of w, or between its subnormals below the normal
// range; as if the format had no largest number. w may be any number. Exact, 2^-149 or more. 0 <= |w| < Inf.
constexpr float ulp_of(const Spacing& spacing, float magnitude) {
  const float at_least = magnitude < spacing.min_normal ? spacing.min_normal : magnitude;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(at_least) & kInfinityBits) * spacing.epsilon;
}

// |dw| < ulp(w) / 2, both finite. Compares 2 |dw|, since half of fp32's smallest ulp is not an fp32 number. If 2 |dw|
// is Inf, it is not less than any ulp.
constexpr bool is_stagnant(const Spacing& spacing, float weight, float delta) {
  const float magnitude = std::bit_cast<float>(magnitude_bits(weight));
  return 2.0f * std::bit_cast<float>(magnitude_bits(delta)) < ulp_of(spacing, magnitude);
}

}  // namespace mantissa
