// LocalScores: the effects of lowering a product on the product itself. In one exact pass each layer shows x, W and dy,
// and every decision about its products is tried on these alone.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/autograd/tape.h"
#include "tools/lab/analyze/sensitivity/decisions.h"
#include "tools/lab/analyze/sensitivity/statistics.h"
#include "tools/model/runtime/model_runtime.h"

namespace mantissa {

// Shares of an operand's elements.
struct OperandRisk {
  double overflow = 0.0;   // that round beyond the format's maximum, or are not finite
  double underflow = 0.0;  // that become 0
  double precision = 0.0;  // that become subnormal and lose leading bits
  double sum() const { return overflow + underflow + precision; }
};

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

// Scores of one decision, on the sampled rows.
struct LocalScore {
  bool seen = false;  // false: nothing is known, as where the layer's sizes do not suit the format
  int64_t rows = 0;   // sampled
  // Sum over elements of (g d)^2: d is the change of the product, g the loss's derivative by it. Meaningless for dgrad
  // and wgrad, which are derivatives themselves.
  double fisher = 0.0;
  double weight_error_squares = 0.0;  // |Q(W) - W|^2; 0 if W is no operand
  OperandRisk risk{};                 // of the operand with the larger sum
  double entropy = 0.0;               // entropy_in_deviations() of the lowered product
  double information = 0.0;           // mutual_information() of the exact and the lowered product
};

class LocalScores final : public ProductObserver {
 public:
  // Larger products are skipped.
  static constexpr int64_t kMaxProductElements = int64_t{1} << 26;
  struct Options {
    int64_t rows = 512;  // to sample, in whole samples and blocks of scales: at least one sample
    int64_t max_elements = kMaxProductElements;
    double loss_scale = 1.0;  // of fp16; shown gradients do not contain it
  };
  // Elements of a product, evenly spread, that entropy and information are computed from.
  static constexpr int64_t kMaxSamples = int64_t{1} << 14;

  // References must outlive the object. A decision about a dtype is tried on fprop; its risk is that of all operands.
  LocalScores(const std::vector<PrecisionDecision>& decisions, const Options& options, const Config& config,
              ModelRuntime& runtime);

  void on_product(const ObservedProduct& shown) override;
  // Scores of the products shown since the last call, in the order of the decisions.
  std::vector<LocalScore> take();

 private:
  int64_t sampled_rows(int64_t rows) const;

  std::vector<PrecisionDecision> decisions_;
  Options options_;
  const Config& config_;
  ModelRuntime& runtime_;
  std::vector<LocalScore> scores_;
  std::map<std::string, std::vector<size_t>, std::less<>> of_layer_;
  Tensor step_;  // of stochastic rounding
};

}  // namespace mantissa
