// LocalScores: what lowering a product does to the product itself, seen in one exact pass: every layer shows x, W and
// dy, and each decision about its products is tried on these alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/autograd/tape.h"
#include "core/quant/exponent_histogram.h"
#include "tools/lab/analyze/sensitivity/decisions.h"
#include "tools/train/session.h"

namespace mantissa {

// Shares of an operand's elements.
struct OperandRisk {
  double overflow = 0.0;   // that round beyond the format's maximum, or are not finite
  double underflow = 0.0;  // that become 0
  double precision = 0.0;  // that become subnormal and lose leading bits
  double sum() const { return overflow + underflow + precision; }
};
OperandRisk risk_of(const FormatLosses& losses);

// Of one decision, on the rows that were looked at.
struct LocalScore {
  bool seen = false;    // else nothing is known of it
  std::string refusal;  // why the format does not go with the layer's sizes
  int64_t rows = 0;     // that were looked at
  // Sums over elements of (g d)^2 and of g d: d is the change of the product, g the loss's derivative by it. Of dgrad
  // and wgrad, which are derivatives themselves, both mean nothing.
  double fisher = 0.0, first_order = 0.0;
  double weight_error_squares = 0.0;  // |Q(W) - W|^2; 0 where W is no operand
  OperandRisk risk;                   // of the operand whose sum is larger
  double entropy = 0.0;               // of the lowered product: entropy_in_deviations()
  double information = 0.0;           // bits between the exact and the lowered product: mutual_information()
};

class LocalScores final : public ProductObserver {
 public:
  // Products with more elements are not looked at.
  static constexpr int64_t kMaxProductElements = int64_t{1} << 26;
  struct Options {
    int64_t rows = 512;  // to look at, in whole samples and blocks of scales: at least a sample
    int64_t max_elements = kMaxProductElements;
    double loss_scale = 1.0;   // that fp16 would have, of the gradients that are shown without
    double shown_scale = 1.0;  // that the gradients are shown with; scores are of those without
  };
  // Elements of a product, evenly spread, that entropy and information are of.
  static constexpr int64_t kMaxSamples = int64_t{1} << 14;

  // `session` must outlive the object. A decision about a dtype is tried on fprop, its risk is that of all operands.
  LocalScores(const std::vector<PrecisionDecision>& decisions, const Options& options, Session& session);

  void on_product(const ObservedProduct& shown) override;
  // In the order of the decisions, of what was shown since the last call.
  std::vector<LocalScore> take();

 private:
  struct Layer;  // what is tried on

  int64_t sampled_rows(int64_t rows) const;
  void look_at(const PrecisionDecision& decision, Layer& layer, LocalScore& score);
  LinearFormats formats_of(const PrecisionDecision& decision) const;

  std::vector<PrecisionDecision> decisions_;
  Options options_;
  Session& session_;
  std::vector<LocalScore> scores_;
  std::map<std::string, std::vector<size_t>, std::less<>> of_layer_;
  Tensor step_;  // of stochastic rounding
};

}  // namespace mantissa
