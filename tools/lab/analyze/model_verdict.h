// What the findings mean: the sentences that a report begins with.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/analyze/model_analysis.h"

namespace mantissa {

enum class VerdictLevel : uint8_t { kGood, kAttention, kBad };
std::string_view name(VerdictLevel level);  // "good", "attention", "bad"

struct ModelVerdict {
  VerdictLevel level = VerdictLevel::kGood;
  std::vector<std::string> lines;  // the conclusion first, then what it rests on, the worst first
};

// Thresholds, above or below which a finding is one:
inline constexpr int64_t kLeastElements = 10;    // of a tensor in a step, on average: fewer are no share to speak of
inline constexpr double kSaturatedShare = 1e-4;  // of a tensor's values that are not 0, in its format
inline constexpr double kUnderflowShare = 0.01;  // of a tensor's values that are not 0, in its format
inline constexpr double kUnderflowShareE2M1 = 0.25;
inline constexpr double kSubnormalShare = 0.5;  // likewise, in fp16
inline constexpr double kLowSnrDb = 10.0;       // of a product: noise of a third of the signal's size
inline constexpr double kBatchLossShare = 0.1;  // of the batch, by rounding's noise
inline constexpr double kStagnantShare = 0.5;   // of a parameter's updates, in the format that its weights have

ModelVerdict verdict_of(const ModelAnalysis& analysis);

}  // namespace mantissa
