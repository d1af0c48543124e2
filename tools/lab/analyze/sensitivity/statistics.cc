#include "tools/lab/analyze/sensitivity/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tools/lab/experiment/paired_difference.h"

namespace mantissa {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// From 1; equal values have the mean of theirs.
std::vector<double> ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> found(values.size());
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) found[order[i]] = static_cast<double>(begin + end + 1) / 2.0;
  }
  return found;
}

}  // namespace

Estimate estimate(std::span<const double> values) {
  constexpr double kLevel = 0.95;
  const bool is_finite = std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  if (values.empty() || !is_finite) return {kNaN, kNaN, kNaN};
  const MeanDifference mean = mean_difference(values, kLevel);
  if (!mean.interval) return {mean.mean, kNaN, kNaN};
  return {mean.mean, (mean.interval->high - mean.interval->low) / 2.0,
          mean.stddev / std::sqrt(static_cast<double>(mean.pairs))};
}

double rank_correlation(std::span<const double> x, std::span<const double> y) {
  std::vector<double> a, b;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) || std::isnan(y[i])) continue;
    a.push_back(x[i]);
    b.push_back(y[i]);
  }
  if (a.size() < 3) return kNaN;
  a = ranks(a);
  b = ranks(b);
  const double mean = static_cast<double>(a.size() + 1) / 2.0;
  double products = 0.0, squares_a = 0.0, squares_b = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    products += (a[i] - mean) * (b[i] - mean);
    squares_a += (a[i] - mean) * (a[i] - mean);
    squares_b += (b[i] - mean) * (b[i] - mean);
  }
  return squares_a == 0.0 || squares_b == 0.0 ? kNaN : products / std::sqrt(squares_a * squares_b);
}

}  // namespace mantissa
