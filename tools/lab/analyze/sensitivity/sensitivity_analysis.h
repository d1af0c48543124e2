// `mantissa analyze sensitivity`: the effect on training of lowering each product of a model's layers alone.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "tools/lab/analyze/sensitivity/decisions.h"
#include "tools/lab/analyze/sensitivity/local_scores.h"
#include "tools/lab/analyze/sensitivity/passes.h"
#include "tools/run/report/report.h"
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
  std::string html{}, json{};  // output files; empty: none

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
  // Intervals of losses are at least their rounding: two units in the last place of the exact loss in fp32.
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

// A cheap ranking of layers, by their gradients alone. Nothing is lowered for it.

// Weights of magnitude, variance and change.
using ScoreWeights = std::array<double, 3>;
// "1,0.5,2". ConfigError unless these are three finite numbers from 0 on, not all 0.
ScoreWeights parse_score_weights(const std::vector<double>& given);

// A linear layer: all of its parameters together, g being the gradient of the mean loss of a batch.
struct LayerScore {
  std::string layer;
  int64_t elements = 0;
  double magnitude = 0.0;  // root mean square of g, mean over batches
  double variance = 0.0;   // of an element of g over batches, mean over elements
  double change = 0.0;     // root mean square of g after a step minus g, on the same batch; mean over batches
  double score = 0.0;
};

// S = w1 magnitude + w2 variance + w3 change, each divided by its largest value among the layers, which gives it no
// unit. Sorts by falling score. A figure that is not finite makes the score infinite: such a layer is the first.
void rank_layers(const ScoreWeights& weights, std::vector<LayerScore>& layers);

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
  std::vector<double> values{};  // of each decision that was tried
};

struct SensitivityAnalysis {
  std::string title;
  Config config;  // exact
  int ranks = 1;
  int64_t step = 0;  // steps done at the analysed point
  SensitivityRequest request;
  int64_t batches = 0;  // with targets
  double learning_rate = 0.0, fp16_scale = 1.0;
  int64_t probes = 0;                       // of the Hessian, as made
  Estimate loss{};                          // of the exact passes
  std::vector<DecisionScores> decisions{};  // in the order of the layers
  std::vector<ParameterScores> parameters;
  std::vector<LayerScore> layers{};  // by falling score, if one was requested

  std::vector<NamedScore> scores() const;
};

// `session` is in in_exact_precision(), at the point to analyse, and left there. ConfigError for weights. Collective.
SensitivityAnalysis analyze_sensitivity(const SensitivityRequest& request, Session& session);

// Estimates are {mean, half_width}; unknown or non-finite values are null in a file. verdict: sentences.
// lowered_decisions: by format, how many decisions lowered_throughout() has. is_lowered: whether a decision is one.
Json to_json(const SensitivityAnalysis& analysis);
Json sensitivity_verdict(const Json& figures);  // its sentences, from the other figures
std::string sensitivity_text(const Json& figures);
extern const std::string_view kSensitivityPage;  // for page_document(); written by page_scripts()

// Runs on one rank or, under mpirun or srun, on several; rank 0 prints the report and writes files. Returns exit codes.
int sensitivity_verb(const SensitivityRequest& request);

}  // namespace mantissa
