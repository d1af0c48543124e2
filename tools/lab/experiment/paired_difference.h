// PairedDifference: what one way of training gains over another, from runs that differ in nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace mantissa {

struct Interval {
  double low = 0.0, high = 0.0;

  bool contains(double value) const { return low <= value && value <= high; }
};

// The quantile of Student's t distribution: P(T <= t) = p. p in (0, 1), degrees of freedom at least 1.
//
// From the distribution function for whole degrees (Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964,
// 26.7.3 and 26.7.4), with theta = atan(t / sqrt(degrees)):
//
//   P(|T| <= t) = 2 / pi (theta + sin theta (cos theta + 2/3 cos^3 theta + ... + (2 4 ... (n-3)) / (3 5 ... (n-2))
//                 cos^(n-2) theta))                                                             n odd; 2 theta / pi for
//                 1
//   P(|T| <= t) = sin theta (1 + 1/2 cos^2 theta + ... + (1 3 ... (n-3)) / (2 4 ... (n-2)) cos^(n-2) theta)       n
//   even
//
// inverted by bisection of theta.
double student_t_quantile(double p, int64_t degrees);

// Of differences that are taken to be independent and normal.
struct MeanDifference {
  int64_t pairs = 0;
  double mean = 0.0;
  double stddev = 0.0;  // of one difference; 0 for one pair
  std::optional<Interval>
      interval{};  // that holds the true mean with the probability `level`; of one pair there is none
};

// mean +- t_(n-1) stddev / sqrt(n), level in (0, 1) (Student, "The Probable Error of a Mean", 1908). At least one
// value.
MeanDifference mean_difference(std::span<const double> differences, double level);
// Of candidate[i] - baseline[i]. Equal sizes.
MeanDifference paired_difference(std::span<const double> baseline, std::span<const double> candidate, double level);

}  // namespace mantissa
