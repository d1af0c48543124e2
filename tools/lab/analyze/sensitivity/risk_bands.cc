#include "tools/lab/analyze/sensitivity/risk_bands.h"

#include <string_view>
#include <utility>

namespace mantissa {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// By format, for forward products and for whole layers in a dtype.
constexpr std::pair<std::string_view, RiskThresholds> kMeasured[] = {
    {"bf16", {0.0051, kNever}},      {"fp16", {0.095, kNever, true}}, {"current", {0.078, 0.29}},
    {"current:e4m3", {0.078, 0.29}},  // the same formats in forward products
    {"block", {0.29, 0.29}},         {"mxfp8", {0.18, kNever}},       {"nvfp4", {0.0, 0.5}},
};

}  // namespace

const char* name(PrecisionBand band) {
  constexpr const char* kNames[] = {"low", "mixed", "fp32", "unrated"};
  return kNames[static_cast<size_t>(band)];
}

std::optional<RiskThresholds> measured_thresholds(const PrecisionDecision& decision) {
  for (const auto& [format, thresholds] : kMeasured) {
    if (format == decision.format && lowers_forward_product(decision)) return thresholds;
  }
  return std::nullopt;
}

PrecisionBand band_of(const OperandRisk& risk, const std::optional<RiskThresholds>& thresholds) {
  if (!thresholds) return PrecisionBand::kUnrated;
  if (thresholds->overflow_harms && risk.overflow > 0.0) return PrecisionBand::kFp32;
  if (risk.sum() < thresholds->low) return PrecisionBand::kLow;
  return risk.sum() <= thresholds->high ? PrecisionBand::kMixed : PrecisionBand::kFp32;
}

}  // namespace mantissa
