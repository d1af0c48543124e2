#include "tools/lab/experiment/paired_comparison.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>

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
  const double sum = std::accumulate(differences.begin(), differences.end(), 0.0);
  MeanDifference found{.pairs = static_cast<int64_t>(differences.size()), .mean = sum / count};
  if (found.pairs == 1) return found;
  double squares = 0.0;
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
  std::vector<double> differences(candidate.begin(), candidate.end());
  for (size_t pair = 0; pair < baseline.size(); ++pair) differences[pair] -= baseline[pair];
  return mean_difference(differences, level);
}

double seed_margin(std::span<const double> first_losses, std::span<const double> final_losses) {
  const bool all_learnt = std::ranges::equal(final_losses, first_losses, std::less<>());
  if (final_losses.size() < 2 || !all_learnt) return 0.0;
  return mean_difference(final_losses, 0.95).stddev;  // the same at every level
}

std::string_view name(ComparisonVerdict verdict) {
  constexpr std::string_view kNames[] = {"better", "equal", "worse", "inconclusive"};
  return kNames[static_cast<size_t>(verdict)];
}

std::optional<ComparisonVerdict> judge(const std::optional<Interval>& interval, double margin, MorePairs more) {
  const bool is_last = more == MorePairs::kNone;
  if (interval) {
    if (-margin <= interval->low && interval->high <= margin) return ComparisonVerdict::kEqual;
    const double least = is_last ? 0.0 : margin;
    if (interval->high < -least) return ComparisonVerdict::kBetter;
    if (interval->low > least) return ComparisonVerdict::kWorse;
  }
  return is_last ? std::optional(ComparisonVerdict::kInconclusive) : std::nullopt;
}

SequentialComparison::SequentialComparison(const SequentialOptions& options) : options_(options) {
  MANTISSA_CHECK(options.margin >= 0.0 && options.level > 0.0 && options.level < 1.0 && options.first_look >= 2 &&
                     options.look_every >= 1 && options.max_pairs >= options.first_look,
                 "[sequential_comparison] expected margin >= 0, level in (0, 1), look_every >= 1 and 2 <= first_look "
                 "<= max_pairs, got {}, {}, {}, {}, {}",
                 options.margin, options.level, options.look_every, options.first_look, options.max_pairs);
}

void SequentialComparison::add(double baseline, double candidate) {
  MANTISSA_CHECK(!verdict_, "[sequential_comparison] expected no pair after the verdict '{}'", name(*verdict_));
  MANTISSA_CHECK(std::isfinite(baseline) && std::isfinite(candidate),
                 "[sequential_comparison] expected finite losses, got {} and {}", baseline, candidate);
  differences_.push_back(candidate - baseline);
  if (!options_.looks_at(pairs())) return;
  verdict_ = judge(difference().interval, options_.margin,
                   pairs() < options_.max_pairs ? MorePairs::kMayCome : MorePairs::kNone);
}

}  // namespace mantissa
