#include "tools/run/guard/spike_detector.h"

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

SpikeDetector::SpikeDetector(const StopRulesConfig& options) : options_(options) {}

bool SpikeDetector::holds_back() const {
  return options_.action != SpikeAction::kNone && options_.action != SpikeAction::kWarn;
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
  // One more than the window: the newest may be that of the step before the one that is planned.
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

}  // namespace mantissa
