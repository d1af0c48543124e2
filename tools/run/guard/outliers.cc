#include "tools/run/guard/outliers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr double kNormalDeviations = 1.4826;  // in one MAD: see the header
constexpr double kLeastShare = 1e-3;          // of the median, that the scale is at least
constexpr double kLeastScale = 1e-12;         // where the median is 0, too

double median_of(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

double total(const PhaseTimes& times) { return std::accumulate(times.begin(), times.end(), 0.0); }

// The median of the values of all ranks but one.
template <typename Value>
double median_of_others(const std::vector<PhaseTimes>& by_rank, size_t but, const Value& value) {
  std::vector<double> others;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (rank != but) others.push_back(value(by_rank[rank]));
  }
  return spread_of(std::move(others)).median;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  MANTISSA_CHECK(!values.empty(), "[spread_of] there are no values");
  const double median = median_of(values);
  for (double& value : values) value = std::abs(value - median);
  const double scale = kNormalDeviations * median_of(values);
  return {.median = median,
          .scale = std::max({scale, kLeastShare * std::abs(median), kLeastScale}),
          .count = static_cast<int64_t>(values.size())};
}

SpikeLimits SpikeDetector::limits(int64_t step) const {
  SpikeLimits limits;
  if (options_.action == SpikeAction::kNone) return limits;
  std::vector<double> losses, norms;
  for (const Sample& sample : samples_) {
    if (sample.step > step - 2) break;
    losses.push_back(sample.loss);
    norms.push_back(sample.norm);
  }
  const auto window = static_cast<size_t>(options_.window);
  if (2 * losses.size() < window) return limits;
  const size_t older = losses.size() > window ? losses.size() - window : 0;
  const auto limit_of = [older](std::vector<double>& values, double z, Spread& spread) {
    if (z == 0.0) return SpikeLimits::kNone;
    values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(older));
    spread = spread_of(std::move(values));
    return spread.median + z * spread.scale;
  };
  limits.loss = limit_of(losses, options_.loss_z, limits.losses);
  limits.norm = limit_of(norms, options_.grad_norm_z, limits.norms);
  return limits;
}

void SpikeDetector::record(const Sample& sample) {
  if (options_.action == SpikeAction::kNone || !std::isfinite(sample.loss) || !std::isfinite(sample.norm)) return;
  samples_.push_back(sample);
  // One more than the window: the newest sample may belong to the step before the planned step.
  while (samples_.size() > static_cast<size_t>(options_.window) + 1) samples_.pop_front();
}

std::string describe(const SpikeLimits& limits, double loss, double norm) {
  std::string text;
  const auto add = [&](const char* name, double value, double limit, const Spread& spread) {
    if (value <= limit) return;  // false for NaN
    text += fmt::format("{}the {} {:.4f} is {:.1f} deviations above {:.4f}, the median of {} steps",
                        text.empty() ? "" : ", ", name, value, spread.z(value), spread.median, spread.count);
  };
  add("loss", loss, limits.loss, limits.losses);
  add("gradient norm", norm, limits.norm, limits.norms);
  return text;
}

void SpikeDetector::restore(const std::vector<Sample>& samples) {
  samples_.clear();
  for (const Sample& sample : samples) record(sample);
}

// ---- Stragglers

std::vector<StragglerChange> StragglerDetector::judge(const std::vector<PhaseTimes>& by_rank, int64_t steps) {
  MANTISSA_CHECK(by_rank.size() == is_slow_.size(), "[stragglers] expected the times of {} ranks, got {}",
                 is_slow_.size(), by_rank.size());
  std::vector<StragglerChange> changes;
  if (by_rank.size() < 2) return changes;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const double mine = total(by_rank[rank]), others = median_of_others(by_rank, rank, total);
    const double limit = std::max((factor_ - 1.0) * others, kLeastExcess * static_cast<double>(steps));
    const bool is_slow = mine - others > (is_slow_[rank] ? 0.5 * limit : limit);
    if (is_slow == (is_slow_[rank] != 0)) continue;
    is_slow_[rank] = is_slow ? 1 : 0;
    StragglerChange change{
        .rank = static_cast<int>(rank), .is_slow = is_slow, .seconds = mine, .others_seconds = others};
    for (size_t phase = 0; phase < kStepPhases.size(); ++phase) {
      const double own = by_rank[rank][phase];
      const double usual = median_of_others(by_rank, rank, [phase](const PhaseTimes& times) { return times[phase]; });
      if (phase > 0 && own - usual <= change.phase_seconds - change.others_phase_seconds) continue;
      change.phase = kStepPhases[phase];
      change.phase_seconds = own;
      change.others_phase_seconds = usual;
    }
    changes.push_back(change);
  }
  return changes;
}

std::string describe(const StragglerChange& change, const std::string& host, int64_t steps) {
  if (!change.is_slow) return fmt::format("rank {} (node {}) is no longer slow", change.rank, host);
  const double ms = 1e3 / static_cast<double>(steps);
  return fmt::format(
      "rank {} (node {}) is slow: {:.1f} ms of work a step, others {:.1f} ms;\n  in {} {:.1f} ms, others {:.1f} ms",
      change.rank, host, ms * change.seconds, ms * change.others_seconds, change.phase, ms * change.phase_seconds,
      ms * change.others_phase_seconds);
}

}  // namespace mantissa
