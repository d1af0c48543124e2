// SensitivityAnalysis: what each product of a model's layers does to its training when it alone is lowered.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/analyze/sensitivity/sensitivity_scores.h"

namespace mantissa {

struct SensitivityRequest {
  std::string target;  // a configuration, or a run folder: its newest checkpoint
  std::vector<std::string> overrides;
  std::vector<std::string> formats = {"bf16", "current"};
  std::string layers = "**";
  int64_t batches = 4;
  int64_t probes = 8;                                       // of the Hessian, over all batches; 0: none
  int64_t rows = 512;                                       // that products are looked at on
  int64_t max_elements = LocalScores::kMaxProductElements;  // of a product that is looked at
  double low_risk = 0.01, high_risk = 0.1;
};

// Scores that decisions are ranked by, larger ones first; NaN counts as Inf, what was not measured not at all.
struct NamedScore {
  const char* name;
  std::vector<double> values;  // by decision
};

struct SensitivityAnalysis {
  std::string title;
  Config config;  // exact
  int ranks = 1;
  int64_t step = 0;  // steps done at the point that was looked at
  SensitivityRequest request;
  double learning_rate = 0.0, fp16_scale = 1.0;
  Estimate loss;                          // of the exact passes
  std::vector<DecisionScores> decisions;  // in the order of the layers
  std::vector<ParameterScores> parameters;

  std::vector<NamedScore> scores() const;
};

// The session is in in_exact_precision(), at the point to be looked at, where it is left. Collective.
SensitivityAnalysis analyze_sensitivity(const SensitivityRequest& request, Session& session);

}  // namespace mantissa
