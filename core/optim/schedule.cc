#include "core/optim/schedule.h"

#include <cmath>
#include <numbers>

#include "core/base/check.h"

namespace mantissa {
namespace {

double fraction(int64_t part, int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

}  // namespace

void validate(const ScheduleOptions& options) {
  const auto check = [](bool valid, const char* key, auto value, const char* expected) {
    require<ConfigError>(valid, "optimizer.{}: expected {}, got {}", key, expected, value);
  };
  check(options.peak > 0.0 && std::isfinite(options.peak), "lr", options.peak, "a rate above 0");
  check(options.final_rate >= 0.0 && options.final_rate <= options.peak, "final_lr", options.final_rate,
        "a rate between 0 and the peak");
  check(options.total_steps > 0, "total_steps", options.total_steps, "at least 1 step");
  check(options.warmup_steps >= 0 && options.warmup_steps <= options.total_steps, "warmup_steps", options.warmup_steps,
        "between 0 and the total number of steps");
  if (options.kind == ScheduleKind::kWarmupStableDecay) {
    check(options.decay_steps >= 0 && options.decay_steps <= options.total_steps - options.warmup_steps, "decay_steps",
          options.decay_steps, "between 0 and the steps that follow the warm-up");
  }
}

double learning_rate(const ScheduleOptions& options, int64_t applied_steps) {
  MANTISSA_CHECK(applied_steps >= 0, "[schedule] the number of applied steps must be >= 0, got {}", applied_steps);
  const int64_t step = applied_steps;
  const double peak = options.peak, final_rate = options.final_rate;
  if (step < options.warmup_steps) return peak * fraction(step + 1, options.warmup_steps);
  if (options.kind == ScheduleKind::kConstant) return peak;
  if (step >= options.total_steps) return final_rate;
  const double x = fraction(step - options.warmup_steps, options.total_steps - options.warmup_steps);
  if (options.kind == ScheduleKind::kLinear) return peak + (final_rate - peak) * x;
  if (options.kind == ScheduleKind::kCosine) {
    return final_rate + (peak - final_rate) * 0.5 * (1.0 + std::cos(std::numbers::pi * x));
  }
  const int64_t decay_begin = options.total_steps - options.decay_steps;
  if (step < decay_begin) return peak;
  return peak + (final_rate - peak) * fraction(step - decay_begin, options.decay_steps);
}

}  // namespace mantissa
