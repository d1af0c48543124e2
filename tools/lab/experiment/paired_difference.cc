#include "tools/lab/experiment/paired_difference.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "core/base/check.h"

namespace mantissa {
namespace {

// P(|T| <= t), theta = atan(t / sqrt(degrees)) in [0, pi/2).
double probability_within(double theta, int64_t degrees) {
  const double sine = std::sin(theta), square = std::cos(theta) * std::cos(theta);
  const bool is_odd = degrees % 2 == 1;
  double term = is_odd ? std::cos(theta) : 1.0, sum = degrees == 1 ? 0.0 : term;
  for (int64_t n = is_odd ? 3 : 2; n <= degrees - 2; n += 2) {
    term *= square * static_cast<double>(n - 1) / static_cast<double>(n);
    sum += term;
  }
  return is_odd ? 2.0 / std::numbers::pi * (theta + sine * sum) : sine * sum;
}

}  // namespace

double student_t_quantile(double p, int64_t degrees) {
  MANTISSA_CHECK(p > 0.0 && p < 1.0 && degrees >= 1,
                 "[student_t_quantile] expected p in (0, 1) and at least 1 degree of freedom, got {} and {}", p,
                 degrees);
  if (p < 0.5) return -student_t_quantile(1.0 - p, degrees);
  const double within = 2.0 * p - 1.0;
  double low = 0.0, high = std::numbers::pi / 2;
  constexpr int kHalvings = 100;  // beyond the last bit
  for (int halving = 0; halving < kHalvings; ++halving) {
    const double middle = 0.5 * (low + high);
    (probability_within(middle, degrees) < within ? low : high) = middle;
  }
  return std::sqrt(static_cast<double>(degrees)) * std::tan(low);
}

MeanDifference mean_difference(std::span<const double> differences, double level) {
  MANTISSA_CHECK(!differences.empty() && level > 0.0 && level < 1.0,
                 "[mean_difference] expected at least one pair and a level in (0, 1), got {} pairs and {}",
                 differences.size(), level);
  const auto count = static_cast<double>(differences.size());
  double sum = 0.0, squares = 0.0;
  for (const double difference : differences) sum += difference;
  MeanDifference found{.pairs = static_cast<int64_t>(differences.size()), .mean = sum / count};
  if (found.pairs == 1) return found;
  for (const double difference : differences) squares += (difference - found.mean) * (difference - found.mean);
  found.stddev = std::sqrt(squares / (count - 1.0));
  const double half = student_t_quantile(0.5 + 0.5 * level, found.pairs - 1) * found.stddev / std::sqrt(count);
  found.interval = Interval{.low = found.mean - half, .high = found.mean + half};
  return found;
}

MeanDifference paired_difference(std::span<const double> baseline, std::span<const double> candidate, double level) {
  MANTISSA_CHECK(baseline.size() == candidate.size(),
                 "[paired_difference] expected as many values of the baseline as of the candidate, got {} and {}",
                 baseline.size(), candidate.size());
  std::vector<double> differences;
  for (size_t pair = 0; pair < baseline.size(); ++pair) differences.push_back(candidate[pair] - baseline[pair]);
  return mean_difference(differences, level);
}

}  // namespace mantissa
