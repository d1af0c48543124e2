// TrainingState: the numbers of a training beside its tensors, in checkpoints and between sessions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <vector>

#include "amp/grad_scaler.h"
#include "tools/run/guard/spike_detector.h"

namespace mantissa {

// Numbers that a session hands on to the next one; the same on all ranks.
struct TrainingState {
  int64_t next_step = 0;      // steps done
  int64_t applied_steps = 0;  // those that were not skipped: for ShardedOptimizer::end_load()
  GradScaler::State scaler;
  int gradient_prescale_log2 = 0;  // see comm/comm_options.h
  std::vector<double> clip_norms;
  std::vector<SpikeDetector::Sample> spike_window{};
  int64_t skipped_batches = 0;  // see session.h

  // Gradients of activations are those of the global mean times this.
  double gradient_factor() const;
};

// Entries of a checkpoint's manifest. The second also reads the manifest's "ranks" and "config"; it throws the JSON
// library's exceptions for a missing entry or a wrong type, and DamagedEntry.
nlohmann::json to_json(const TrainingState& state);
TrainingState training_state_from(const nlohmann::json& manifest);

}  // namespace mantissa
