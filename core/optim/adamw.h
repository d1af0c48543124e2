// AdamW: hyper-parameters and the plan of one update. The kernel's arguments are AdamWArgs.
#pragma once

#include <cstdint>

#include "core/kernels/optimizer/records.h"
#include "core/kernels/reduction/records.h"

namespace mantissa {

// How a moment is stored between updates. Updates compute in fp32 and round on store.
enum class MomentFormat : uint8_t {
  kF32,
  kBF16,            // rounded to nearest; first moments only
  kBF16Stochastic,  // second moments only
  kBlockwise8Bit,   // codes of core/quant/dynamic_map.h, an fp32 absmax per block; some parameters keep fp32
};

// The weights that updates change for bf16 working weights. In fp32, these are their own masters unless others exist.
enum class MasterWeights : uint8_t {
  kF32,
  kNoneStochastic,  // the working weights themselves, rounded stochastically
  kKahan,           // as kNoneStochastic, with a compensation in bf16: see AdamWArgs
};

// Decay is decoupled and applies to parameters with WeightDecay::kYes only.
struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.01f;
  MomentFormat first_moment = MomentFormat::kF32, second_moment = MomentFormat::kF32;
  MasterWeights master = MasterWeights::kF32;
  WeightRounding weight_rounding = WeightRounding::kNearest;  // from masters to 16-bit working weights
  uint64_t seed = 0;                                          // the run's; for stochastic rounding

  // Whether a moment is stored in 8 bits.
  bool has_blocks() const {
    return first_moment == MomentFormat::kBlockwise8Bit || second_moment == MomentFormat::kBlockwise8Bit;
  }
};

inline constexpr const char* kWhyNoNearestSecondMoment =
    "a second moment in bf16 that is rounded to nearest never decays at beta2 = 0.999: an update takes 0.1 % of it, "
    "which is less than half a step of bf16; give bf16_stochastic, 8bit or fp32";

void validate(const AdamWOptions& options);  // ConfigError naming the value out of range, or the unsupported format

// The plan of update number `applied_steps + 1`. unscale, clip_threshold: see UpdatePlan. Corrects bias in double.
UpdatePlan plan_update(const AdamWOptions& options, int64_t applied_steps, double unscale, double clip_threshold,
                       double learning_rate);

}  // namespace mantissa
