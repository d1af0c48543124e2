// The verdict on a model's findings: the sentences that its report begins with.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/analyze/model_analysis.h"

namespace mantissa {

enum class VerdictLevel : uint8_t { kGood, kAttention, kBad };
std::string_view name(VerdictLevel level);  // "good", "attention", "bad"

struct ModelVerdict {
  VerdictLevel level = VerdictLevel::kGood;
  std::vector<std::string> lines;  // the conclusion, then its reasons, then a static loss scale for fp16
};

// Thresholds of findings. They show where a remedy may be worth a try, and measure no harm. kUnderflowShareScaled
// follows trainings (docs/results/risk_bands.md), the others are conventions.
inline constexpr int64_t kLeastElements = 10;         // lost in a step, on average: a share of fewer means nothing
inline constexpr double kSaturatedShare = 1e-4;       // of a tensor's non-zero values, in its format
inline constexpr double kUnderflowShare = 0.01;       // of a tensor's non-zero values, in its format
inline constexpr double kUnderflowShareScaled = 0.5;  // the same, for gradients in 8 bits with scales
inline constexpr double kUnderflowShareE2M1 = 0.25;   // e2m1 rounds a tenth of normal values to 0
inline constexpr double kSubnormalShare = 0.5;        // of a tensor's non-zero values, in fp16
inline constexpr double kLowSnrDb = 10.0;             // of a product: noise of a third of the signal
inline constexpr double kBatchLossShare = 0.1;        // of the batch, through rounding noise
inline constexpr double kStagnantShare = 0.5;         // of a parameter's updates, in its weights' format

// Each reason ends with advice that has an effect in the finding's format.
ModelVerdict verdict_of(const ModelAnalysis& analysis);

}  // namespace mantissa
