#include "core/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/check.h"

namespace mantissa {
namespace {

// Linear interpolation between the closest ranks, as numpy.percentile.
double percentile_of(std::vector<double> values, double percentile) {
  std::sort(values.begin(), values.end());
  const double position = percentile / 100.0 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

void validate(const ClipOptions& options) {
  if (options.kind == ClipOptions::Kind::kOff) return;
  const bool adaptive = options.kind == ClipOptions::Kind::kAdaptive;
  const bool positive = options.max_norm > 0.0 || (adaptive && options.max_norm == 0.0);
  require<ConfigError>(positive && std::isfinite(options.max_norm),
                       "optimizer.clip.max_norm: expected a finite number above 0, got {}", options.max_norm);
  if (!adaptive) return;
  require<ConfigError>(options.percentile >= 0.0 && options.percentile <= 100.0,
                       "optimizer.clip.percentile: expected a number in [0, 100], got {}", options.percentile);
  require<ConfigError>(options.warmup >= 1 && options.warmup <= options.window,
                       "optimizer.clip.warmup: expected between 1 and optimizer.clip.window = {} steps, got {}",
                       options.window, options.warmup);
}

}  // namespace

GradientClipper::GradientClipper(const ClipOptions& options) : options_(options) { validate(options_); }

double GradientClipper::threshold() const {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (options_.kind != ClipOptions::Kind::kAdaptive) {
    return options_.kind == ClipOptions::Kind::kFixed ? options_.max_norm : kNone;
  }
  if (norms_.size() >= static_cast<size_t>(options_.warmup)) return percentile_of(state(), options_.percentile);
  return options_.max_norm > 0.0 ? options_.max_norm : kNone;
}

void GradientClipper::record(double norm) {
  MANTISSA_CHECK(std::isfinite(norm) && norm >= 0.0, "[clip] expected the norm of a finite gradient, got {}", norm);
  if (options_.kind != ClipOptions::Kind::kAdaptive) return;
  norms_.push_back(norm);
  while (norms_.size() > static_cast<size_t>(options_.window)) norms_.pop_front();
}

void GradientClipper::restore(const std::vector<double>& norms) {
  norms_.clear();
  for (const double norm : norms) record(norm);
}

}  // namespace mantissa
