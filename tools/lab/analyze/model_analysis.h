// ModelAnalysis: a model is trained for a few steps from one or two points of its training, in memory, with every step
// looked at. Nothing is written to the run.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/analyze/model_findings.h"
#include "tools/config/config.h"

namespace mantissa {

class Communicator;

struct ModelRequest {
  std::string target;  // a configuration, or a run folder
  std::vector<std::string> overrides;
  int64_t batches = 8;  // steps from each point
  StaticScaleOptions loss_scale = kLossScaleOptions;
};

struct ModelAnalysis {
  std::string title;  // the target
  Config config;
  int ranks = 1;
  int64_t batches = 0;
  std::vector<CheckpointFindings> checkpoints;  // the early one first
};

// The configuration of a target: of a run, that of its newest checkpoint; with the overrides, and
// with weights that are gathered as they are. ConfigError, CheckpointError.
Config configuration_of(const ModelRequest& request);

// Of a configuration there is one point, its first weights; of a run its newest checkpoint, and the oldest if that is
// of at most half as many steps, else the first weights. Collective.
ModelAnalysis analyze_model(const ModelRequest& request, const Config& config, Communicator& communicator);

}  // namespace mantissa
