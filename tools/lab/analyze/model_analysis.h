// ModelAnalysis: a model is trained for a few probed steps, in memory, from one or two points of its training. Nothing
// is written to the run.
#pragma once

#include <string>
#include <vector>

#include "tools/config/config.h"
#include "tools/lab/analyze/model_findings.h"

namespace mantissa {

class Communicator;

struct ModelRequest {
  std::string target;  // a configuration or a run folder
  std::vector<std::string> overrides{};
  int64_t batches = 8;  // steps from each point
  StaticScaleOptions loss_scale = kLossScaleOptions;
};

struct ModelAnalysis {
  std::string title;  // the target
  Config config;
  int ranks = 1;
  int64_t batches = 0;
  std::vector<CheckpointFindings> checkpoints{};  // in the order of training
};

// The configuration of a target, with the overrides; a run's is that of its newest checkpoint. Working weights are
// gathered unrounded. ConfigError, CheckpointError.
Config configuration_of(const ModelRequest& request);

// `config`, changed so that a training from its checkpoint.resume writes nothing.
Config without_outputs(Config config);

// Starts from the first weights of a configuration. A run has two points: its newest checkpoint, and the oldest if that
// has at most half as many steps, else the first weights. Collective.
ModelAnalysis analyze_model(const ModelRequest& request, const Config& config, Communicator& communicator);

}  // namespace mantissa
