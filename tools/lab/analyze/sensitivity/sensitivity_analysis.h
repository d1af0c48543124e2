// SensitivityAnalysis: the effect on training of lowering each product of a model's layers alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/lab/analyze/sensitivity/decisions.h"
#include "tools/lab/analyze/sensitivity/hessian.h"
#include "tools/lab/analyze/sensitivity/layer_scores.h"
#include "tools/lab/analyze/sensitivity/local_scores.h"
#include "tools/lab/analyze/sensitivity/risk_bands.h"
#include "tools/train/step/session.h"

namespace mantissa {

struct SensitivityRequest {
  std::string target;  // a configuration, or a run folder: its newest checkpoint
  std::vector<std::string> overrides{};
  std::vector<std::string> formats = {"bf16", "current"};
  std::string layers = "**";
  int64_t batches = 4;
  int64_t probes = 8;                                       // of the Hessian, over all batches; 0: none
  int64_t rows = 512;                                       // to sample of a product
  int64_t max_elements = LocalScores::kMaxProductElements;  // larger products are not sampled
  std::optional<double> low_risk{}, high_risk{};  // replace low and high of measured_thresholds(): both or none
  std::vector<double> score{};  // also ranks layers by their gradients, with these weights; empty: does not
  int64_t top_k = 0;            // layers of this ranking to print; 0: all
  std::optional<double> hessian_interval{};  // HessianGoal::share: adds probes, up to max_probes
  int64_t max_probes = 512;

  HessianGoal hessian_goal() const {
    return {.share = hessian_interval.value_or(0.0), .first = probes, .most = max_probes};
  }
};

// Scores of one decision over all batches; unknown if not measured.
struct DecisionScores {
  PrecisionDecision decision;
  std::string refusal{};  // why it could not be tried; empty: it was
  // The change of the batch's loss when this decision is lowered, nats per token: at once if the forward pass is
  // lowered, and for a backward product, which does not change the loss at first, after an update with its gradients.
  Estimate loss{}, loss_magnitude{};
  Estimate update_loss{};       // after an update with the lowered gradients, evaluated exactly
  Estimate gradient_change{};   // |g' - g| / |g| of all parameters
  Estimate parameter_change{};  // |dw' - dw| / |dw| of the update
  // Forward product: sum of (dL/dy d)^2 over its elements, d its change. Backward product: sum of (dL/dw dw)^2 over all
  // weights, dw their change by an update with the lowered gradients beyond the exact one.
  Estimate fisher{};
  // 1/2 sum over parameters of mean curvature (trace / elements) times the squared change, in nats, as HAWQ-V2 weighs
  // layers (Dong et al. 2020). The change is the rounding of the weights for a sampled forward product, else that of
  // the update. Over probes: the interval is one of the mean Hessian of these batches.
  Estimate hessian{};
  Estimate entropy{}, information{};               // bits
  OperandRisk risk{kUnknown, kUnknown, kUnknown};  // mean
  PrecisionBand band = PrecisionBand::kUnrated;
};

struct ParameterScores {
  std::string name;
  int64_t elements = 0;
  Estimate gradient_rms{};                       // of the gradient of the mean loss
  double gradient_variance = 0.0;                // of an element over batches, mean; NaN for one batch
  Estimate hessian_trace{};                      // of its block of the Hessian
  std::pair<double, double> hessian_diagonal{};  // see diagonal_range()
};

// A score for ranking decisions, the largest first. Not finite counts as Inf; NaN is not known.
struct NamedScore {
  const char* name;
  std::vector<double> values;  // of each decision that was tried
};

struct SensitivityAnalysis {
  std::string title;
  Config config;  // exact
  int ranks = 1;
  int64_t step = 0;  // steps done at the analysed point
  SensitivityRequest request;
  double learning_rate = 0.0, fp16_scale = 1.0;
  int64_t probes = 0;                       // of the Hessian, as made
  Estimate loss{};                          // of the exact passes
  std::vector<DecisionScores> decisions{};  // in the order of the layers
  std::vector<ParameterScores> parameters;
  std::vector<LayerScore> layers{};  // by falling score, if one was requested

  std::vector<NamedScore> scores() const;
};

// `session` is in in_exact_precision(), at the point to analyse, and is left there. ConfigError for impossible score
// weights. Collective.
SensitivityAnalysis analyze_sensitivity(const SensitivityRequest& request, Session& session);

}  // namespace mantissa
