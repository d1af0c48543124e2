// TrainingState: what a training has come to besides weights, moments and scales: a few numbers, the same on all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/train/session.h"

namespace mantissa {

struct TrainingState {
  int64_t next_step = 0;      // steps done
  int64_t applied_steps = 0;  // of them, those that were not skipped: for ShardedOptimizer::end_load()
  GradScaler::State scaler;
  int gradient_boost_log2 = 0;  // see session.h
  std::vector<double> clip_norms;

  // Gradients of activations are those of the global mean times this.
  double gradient_factor() const;
};

TrainingState state_of(const Session& session);

// As entries of a checkpoint's manifest, whose "ranks" and "config" the second reads as well. It throws json's
// exceptions for what is missing or of another type.
nlohmann::json to_json(const TrainingState& state);
TrainingState training_state_from(const nlohmann::json& manifest);

// Scaler, clipper and the number of steps as they were. A scaler of another mode starts afresh, and the log says so.
void continue_from(const TrainingState& state, Session& session);
// Behind that: the scales of delayed scaling, those of gradients for the loss scale that the session has now.
void continue_scales(const TrainingState& state, const DelayedScales::State& scales, Session& session);

}  // namespace mantissa
