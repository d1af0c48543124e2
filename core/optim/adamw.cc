#include "core/optim/adamw.h"

#include <cmath>

#include "core/base/check.h"

namespace mantissa {
namespace {

// Callers write conditions that are false for NaN, so NaN is rejected.
void require(bool in_range, const char* key, double value, const char* expected) {
  if (!in_range) throw ConfigError(fmt::format("optimizer.{}: expected {}, got {}", key, expected, value));
}

}  // namespace

void validate(const AdamWOptions& options) {
  require(options.beta1 >= 0.0f && options.beta1 < 1.0f, "beta1", options.beta1, "a number in [0, 1)");
  require(options.beta2 >= 0.0f && options.beta2 < 1.0f, "beta2", options.beta2, "a number in [0, 1)");
  require(options.epsilon > 0.0f && std::isfinite(options.epsilon), "epsilon", options.epsilon, "a number above 0");
  require(options.weight_decay >= 0.0f && std::isfinite(options.weight_decay), "weight_decay", options.weight_decay,
          "a number of at least 0");
  if (options.first_moment == MomentFormat::kBF16Stochastic) {
    throw ConfigError("optimizer.first_moment: expected fp32, bf16 or 8bit, got bf16_stochastic");
  }
  if (options.second_moment == MomentFormat::kBF16) {
    throw ConfigError(fmt::format("optimizer.second_moment: {}", kWhyNoNearestSecondMoment));
  }
}

UpdatePlan plan_update(const AdamWOptions& options, int64_t applied_steps, double unscale, double clip_threshold,
                       double learning_rate) {
  MANTISSA_CHECK(applied_steps >= 0, "[adamw] the number of applied steps must be >= 0, got {}", applied_steps);
  MANTISSA_CHECK(!std::isnan(unscale) && std::isfinite(learning_rate),
                 "[adamw] unscale and learning rate must be numbers, got {} and {}", unscale, learning_rate);
  MANTISSA_CHECK(clip_threshold >= 0.0, "[adamw] the clipping threshold must be >= 0, got {}", clip_threshold);
  const double step = static_cast<double>(applied_steps + 1);
  return {.unscale = unscale,
          .clip_threshold = clip_threshold,
          .learning_rate = static_cast<float>(learning_rate),
          .bias_correction1 = static_cast<float>(1.0 - std::pow(static_cast<double>(options.beta1), step)),
          .bias_correction2 = static_cast<float>(1.0 - std::pow(static_cast<double>(options.beta2), step)),
          .update = static_cast<uint32_t>(applied_steps + 1)};
}

}  // namespace mantissa
