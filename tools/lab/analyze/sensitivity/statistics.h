// Means of repeated measurements with their confidence intervals, and how far two scores agree in what they rank.
#pragma once

#include <span>

namespace mantissa {

// The mean of values that were measured several times, and half of its 95 % confidence interval by Student's t, which
// is NaN of fewer than two values, as is the mean's standard error. All are NaN where a value is not finite.
struct Estimate {
  double mean = 0.0;
  double half_width = 0.0;
  double error = 0.0;
};
Estimate estimate(std::span<const double> values);

// Spearman's rank correlation, -1 to 1: Pearson's of the ranks, equal values having the mean of theirs. Pairs of which
// one is NaN are left out; +Inf is above all numbers. NaN of fewer than three pairs, and where all values of one are
// equal.
double rank_correlation(std::span<const double> x, std::span<const double> y);

}  // namespace mantissa
