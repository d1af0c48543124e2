// AdamW: hyper-parameters and the plan of one update. The kernel is Backend::adamw.
#pragma once

#include <cstdint>

#include "core/backend/update_decision.h"

namespace mantissa {

// Decay is decoupled and applies to parameters with WeightDecay::kYes only.
struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.01f;
  DType first_moment =
      DType::kF32;  // fp32 or bf16; the second moment is fp32: in bf16 it would never decay at beta2 = 0.999
  WeightRounding weight_rounding = WeightRounding::kNearest;  // of masters to 16-bit working weights
  uint64_t seed = 0;                                          // of stochastic rounding: the run's
};

// ConfigError naming the value that is out of range.
void validate(const AdamWOptions& options);

// The plan of the update that makes `applied_steps + 1` of them; see UpdatePlan for unscale and clip_threshold. Bias
// corrections are computed in double.
UpdatePlan plan_update(const AdamWOptions& options, int64_t applied_steps, double unscale, double clip_threshold,
                       double learning_rate);

}  // namespace mantissa
