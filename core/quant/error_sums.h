// Sums that measure how far values are from their references.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace mantissa {

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

}  // namespace mantissa
