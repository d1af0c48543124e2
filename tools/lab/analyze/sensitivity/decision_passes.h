// DecisionPasses: every decision of a model, tried alone on one batch after the other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "amp/autocast_policy.h"
#include "core/base/progress_bar.h"
#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

namespace mantissa {

// Effects of a decision on a batch; the numbers are as in DecisionScores, NaN if not finite.
struct DecisionPass {
  std::string refusal;
  double loss = 0.0, update_loss = 0.0, gradient_change = 0.0, parameter_change = 0.0;
  std::vector<double> change_squares;  // of each parameter, see DecisionScores::hessian; NaN: not known
  double fisher = 0.0;                 // NaN: not known
  LocalScore local{};                  // of all ranks
};

// Tries every decision on one batch after the other.
class DecisionPasses {
 public:
  // Both must outlive the object. Collective.
  DecisionPasses(const SensitivityRequest& request, Session& session);

  // Tries every decision on the batch of a training step, which stays loaded. Leaves the session at the point.
  // `progress` advances with each decision. Collective.
  void run(int64_t step, ProgressBar& progress);
  // After all batches; `level` is that of the traces' intervals. Collective.
  std::vector<ParameterScores> parameter_scores(const HessianProbes& probes, double level);
  // Scores of the linear layers among the decisions, the largest first. `parameters`: parameter_scores().
  std::vector<LayerScore> layer_scores(const ScoreWeights& weights,
                                       const std::vector<ParameterScores>& parameters) const;

  const std::vector<PrecisionDecision> decisions;
  LoweredPasses passes;
  // The loss scale of passes in fp16: the power of two that leaves the largest gradient of the first batch a factor of
  // kFp16Headroom. 1 if nothing is lowered to fp16.
  double fp16_scale = 1.0;
  std::vector<double> losses;                      // exact, of each batch
  std::vector<std::vector<DecisionPass>> results;  // by decision, then batch

 private:
  struct Lowered {
    std::unique_ptr<AutocastPolicy> policy;
    std::string refusal;
    float loss_scale = 1.0f;
  };

  void start_local_scores();
  void run_exact(int64_t step);
  DecisionPass lower(size_t index);
  std::vector<LocalScore> local_scores();
  double fisher_of_update(const Shard& masters);

  const SensitivityRequest& request_;
  Session& session_;
  const ShardedState& state_;
  std::vector<Lowered> lowered_;
  std::unique_ptr<LocalScores> local_;
  double updated_loss_ = 0.0;                        // of the batch in hand after an exact update
  Shard gradient_, gradient_sum_, start_, updated_;  // exact: gradient, its sum over batches; masters before and after
  std::vector<std::vector<double>> gradient_squares_;  // of each batch, by parameter
  std::vector<std::vector<double>> step_squares_;      // of their change by a step
};

}  // namespace mantissa
