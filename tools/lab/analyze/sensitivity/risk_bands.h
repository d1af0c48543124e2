// Bands of precision, by the share of an operand's elements at risk.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "tools/lab/analyze/sensitivity/decisions.h"
#include "tools/lab/analyze/sensitivity/local_scores.h"

namespace mantissa {

// By OperandRisk::sum(): below the lower threshold, between both, above the upper (or with any overflow, if
// overflow_harms). kUnrated: the share does not predict harm.
enum class PrecisionBand : uint8_t { kLow, kMixed, kFp32, kUnrated };
const char* name(PrecisionBand band);  // "low", "mixed", "fp32", "unrated"

struct RiskThresholds {
  double low = 0.0, high = std::numeric_limits<double>::infinity();  // shares of elements
  bool overflow_harms = false;                                       // fp16: one Inf is enough
};
// The thresholds measured by tools/bench/risk_bands for the decision's format (docs/results/risk_bands.md). On the
// models used to choose, at most a twentieth of the products below `low` raised the loss by kHarmNats, and nine tenths
// of the products above `high`. On the held-out model, 2 of 33 products below `low` of fp16 did. A bound that no share
// met is 0 or infinite. Nothing for backward products, whose shares say nothing, and for other formats.
std::optional<RiskThresholds> measured_thresholds(const PrecisionDecision& decision);

PrecisionBand band_of(const OperandRisk& risk, const std::optional<RiskThresholds>& thresholds);

}  // namespace mantissa
