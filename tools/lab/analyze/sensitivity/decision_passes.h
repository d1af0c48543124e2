// DecisionPasses: tries every decision on one batch after the other.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "amp/autocast_policy.h"
#include "tools/lab/analyze/sensitivity/hessian.h"
#include "tools/lab/analyze/sensitivity/local_scores.h"
#include "tools/lab/analyze/sensitivity/passes.h"
#include "tools/lab/analyze/sensitivity/sensitivity_scores.h"
#include "tools/lab/analyze/sensitivity/shard.h"

namespace mantissa {

// What one decision did to one batch.
struct DecisionPass {
  std::string refusal;  // of its sizes: nothing was tried
  // As in DecisionScores; NaN: not finite.
  double loss = 0.0, update_loss = 0.0, gradient_change = 0.0, parameter_change = 0.0;
  std::vector<double> moved_squares;  // by parameter: what lowering moves, see DecisionScores::hessian; NaN: not known
  double fisher = 0.0;                // see DecisionScores::fisher; NaN: not known
  LocalScore local;                   // of all ranks
};

struct BatchFindings {
  double loss = 0.0;  // exact
  std::vector<DecisionPass> decisions;
  double seconds = 0.0;
};

class DecisionPasses {
 public:
  // `looked_at`: how much of products; its scales are found. `session` must outlive the object. Collective.
  DecisionPasses(std::vector<PrecisionDecision> decisions, const LocalScores::Options& looked_at, Session& session);

  const std::vector<PrecisionDecision>& decisions() const { return decisions_; }
  LoweredPasses& passes() { return *passes_; }
  // The loss scale that passes in fp16 have: the power of two that leaves the largest gradient of the first batch a
  // factor of 16. 1 where nothing is lowered to fp16.
  double fp16_scale() const { return fp16_scale_; }

  // The batch of one step of the training, which stays loaded. The session is left at the point. Collective.
  BatchFindings run(int64_t step);
  // Of the batches that were run. `probes`: of the Hessian, or none. Collective.
  std::vector<ParameterScores> parameter_scores(const HessianProbes& probes);

 private:
  struct Lowered {
    std::unique_ptr<AutocastPolicy> policy;
    std::string refusal;
    float loss_scale = 1.0f;
  };

  void prepare();
  void find_fp16_scale();
  // Losses of the exact passes: at the point, and after an update.
  struct ExactLoss {
    double before = 0.0, after = 0.0;
  };
  DecisionPass lower(size_t index, const ExactLoss& exact);
  std::vector<LocalScore> local_scores();
  // Sum over all weights of (g dw)^2: dw is what an update with lowered gradients moves them by beyond the exact one.
  double fisher_of_update(const Shard& masters);

  std::vector<PrecisionDecision> decisions_;
  Session& session_;
  std::vector<Lowered> lowered_;
  std::unique_ptr<LoweredPasses> passes_;
  LocalScores::Options looked_at_;
  std::unique_ptr<LocalScores> local_;
  double fp16_scale_ = 1.0;
  Shard gradient_, gradient_sum_, start_, updated_;    // of the exact pass: gradient, sum over batches; masters
  std::vector<std::vector<double>> gradient_squares_;  // of each batch, by parameter
};

}  // namespace mantissa
