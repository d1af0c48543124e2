#include "core/optim/adamw.h"

#include <cmath>

#include "core/base/check.h"

namespace mantissa {
void validate(const AdamWOptions& options) {
  // Conditions are false for NaN, so NaN is rejected.
  const auto check = [](bool in_range, const char* key, float value, const char* expected) {
    require<ConfigError>(in_range, "optimizer.{}: expected {}, got {}", key, expected, value);
  };
  check(options.beta1 >= 0.0f && options.beta1 < 1.0f, "beta1", options.beta1, "a number in [0, 1)");
  check(options.beta2 >= 0.0f && options.beta2 < 1.0f, "beta2", options.beta2, "a number in [0, 1)");
  check(options.epsilon > 0.0f && std::isfinite(options.epsilon), "epsilon", options.epsilon, "a number above 0");
  check(options.weight_decay >= 0.0f && std::isfinite(options.weight_decay), "weight_decay", options.weight_decay,
        "a number of at least 0");
  require<ConfigError>(options.first_moment != MomentFormat::kBF16Stochastic,
                       "optimizer.first_moment: expected fp32, bf16 or 8bit, got bf16_stochastic");
  require<ConfigError>(options.second_moment != MomentFormat::kBF16, "optimizer.second_moment: {}",
                       kWhyNoNearestSecondMoment);
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
          .learning_rate = learning_rate,
          .bias_correction1 = 1.0 - std::pow(static_cast<double>(options.beta1), step),
          .bias_correction2 = 1.0 - std::pow(static_cast<double>(options.beta2), step),
          .update = static_cast<uint32_t>(applied_steps + 1)};
}

}  // namespace mantissa
